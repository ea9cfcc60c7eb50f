"""A delivery that failed."""

from typing import Any

import pytest

from tests.support.callers.api import ApiOf
from tests.support.callers.sending import Worker, history, make_findings


@pytest.fixture
def failed(api: ApiOf, webhook: dict[str, Any], worker: Worker) -> dict[str, Any]:
    """A delivery that failed for good."""
    make_findings(api(), 1)
    worker.send(webhook, 500)
    (row,) = history(api(), webhook)
    assert row["status"] == "failed"
    return row
