"""The worker builds evidence packs; `pack_memory` is a process that says what memory it took."""
