"""The log's head outside the database: `head_store`, `s3_head`, held by `head_guard`."""
