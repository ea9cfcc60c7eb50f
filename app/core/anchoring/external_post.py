"""POSTs to an authority or a witness, with a deadline and a limit on the answer's size."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.lib.outbound.client import Outbound
from app.models import Job

DEADLINE_SECONDS = 15.0
MAX_BODY_BYTES = 64 * 1024

# Some minutes of tries (5 s, 30 s and 120 s apart); the clock begins again after ten.
_MOST_RETRIES = 3


class NoAnswer(Exception):
    """No answer that could be read; the text explains."""


@dataclass(frozen=True)
class Reply:
    """A whole answer: its status and body."""

    status: int
    body: bytes

    def ok(self) -> bytes:
        """Return the body of a 200. Raises `NoAnswer` for any other status."""
        if self.status != 200:
            raise NoAnswer(f"It answered with the status {self.status}.")
        return self.body


def post(outbound: Outbound, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
    """POST to a URL that the operator chose. Raises `NoAnswer` unless a whole answer came."""
    answer = outbound.send(
        url,
        body,
        headers,
        deadline_seconds=DEADLINE_SECONDS,
        kept_bytes=MAX_BODY_BYTES,
        body_seconds=DEADLINE_SECONDS,
    )
    if answer.status is None or answer.error is not None:
        raise NoAnswer(f"No answer: {answer.error or answer.failure}.")
    if len(answer.body) >= MAX_BODY_BYTES:
        raise NoAnswer(f"The answer is longer than {MAX_BODY_BYTES} bytes.")
    return Reply(answer.status, answer.body)


def was_last(job: Job) -> bool:
    """Whether a job that fails now is to rest until the clock asks again."""
    return job.attempts >= _MOST_RETRIES
