"""Rules over HTTP, judged by a worker in this process."""
