"""The client: its requests, its commands, its package."""
