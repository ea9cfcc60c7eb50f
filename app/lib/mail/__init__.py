"""Mail: `mailbox` (addresses), `mailer` (the port, and `SMTP_URL`) and `smtp`."""
