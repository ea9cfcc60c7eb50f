"""Mail: `mailbox` (addresses), `mailer` (the port), `smtp_url` and `smtp`."""
