"""What stands between a recorder and the service: it may be away, or lose answers."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests

_PASSED_ON = {"authorization", "content-type", "content-encoding", "idempotency-key"}


class Between(ThreadingHTTPServer):
    """A relay to the service on a port of its own; its port stays while it is away."""

    daemon_threads = True

    def __init__(self, to: str) -> None:
        super().__init__(("127.0.0.1", 0), _Relay)
        self.to = to
        self.url = f"http://127.0.0.1:{self.server_port}"
        # Says of a request, by method and path, whether its answer is lost.
        self.loses: Callable[[str, str], bool] = lambda *_: False
        self.asked: list[tuple[str, str]] = []
        self.is_away = False


class _Relay(BaseHTTPRequestHandler):
    server: Between
    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        relay = self.server
        if relay.is_away:
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {n: v for n, v in self.headers.items() if n.lower() in _PASSED_ON}
        to = relay.to + self.path
        answer = requests.request(self.command, to, data=body, headers=headers, timeout=60)
        relay.asked.append((self.command, self.path))
        if relay.loses(self.command, self.path):
            self.close_connection = True
            return
        self.send_response(answer.status_code)
        self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = do_PUT = _pass  # noqa: N815  # as the base names them

    def log_message(self, *_: object) -> None:
        """Write no log."""
