"""Why an event has not arrived: the lane's state, and one sentence on what comes next."""

import re
from typing import Any

import pytest

from tests.support.callers.api import Api, ApiOf
from tests.support.callers.sending import TWO_TRIES, Worker, history, make_findings, make_webhook

WAITS = "It waits for its first attempt"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


def why(api: Api, webhook: dict[str, Any], event_id: str | None = None) -> tuple[str, str]:
    """Return the sentence on an event, by default the newest, and the lane's state."""
    event = event_id or history(api, webhook)[0]["event_id"]
    answer = api.get(f"/v1/webhooks/{webhook['id']}/decisions?event_id={event}")
    assert answer.status_code == 200, answer.json
    assert (answer.json["lane"]["until"] is not None) is (answer.json["lane"]["state"] == "paused")
    return re.sub(TIME, "THEN", answer.json["summary"]), answer.json["lane"]["state"]


def test_what_waits_is_told_how_many_are_before_it(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    for _ in range(3):
        make_findings(api(), 1)
    newest, *_, oldest = history(api(), webhook)

    assert why(api(), webhook, oldest["event_id"]) == (
        "It waits for its first attempt, and is the next of this webhook to be sent.",
        "idle",
    )
    assert why(api(), webhook, newest["event_id"])[0] == (
        "It waits for its first attempt, with 2 others of this webhook before it."
    )
    worker.claim(webhook, limit=1)
    assert why(api(), webhook, oldest["event_id"])[0] == "Attempt 1 is under way."


def test_what_ended_is_told_how(api: ApiOf, webhook: dict[str, Any], worker: Worker) -> None:
    make_findings(api(), 1)
    worker.send(webhook, 200)
    assert why(api(), webhook)[0] == "It arrived by one attempt, recorded at THEN."
    make_findings(api(), 1)
    worker.send(webhook, 400)
    assert why(api(), webhook)[0] == (
        "It failed for good after one attempt, at THEN (HTTP 400); a replay sends it again."
    )
    make_findings(api(), 1)
    worker.send(webhook, None, TWO_TRIES)
    assert why(api(), webhook)[0] == "It has failed once (timeout); attempt 2 is due at THEN."


@pytest.mark.parametrize(
    ("change", "state", "sentence"),
    [
        (
            "UPDATE lanes SET paused_until = clock_timestamp() + interval '1 h'",
            "paused",
            "It waits for its first attempt, but the webhook is paused until a probe at THEN.",
        ),
        (
            "UPDATE lanes SET held_since = clock_timestamp()",
            "held",
            f"{WAITS}, but the webhook is held, so it is sent once that is released.",
        ),
        (
            "UPDATE lanes SET slow_at = clock_timestamp()",
            "slow",
            "It waits for its first attempt, and is the next of this webhook to be sent.",
        ),
    ],
)
def test_a_lane_that_does_not_send_is_the_reason(
    api: ApiOf,
    webhook: dict[str, Any],
    worker: Worker,
    change: str,
    state: str,
    sentence: str,
) -> None:
    make_findings(api(), 1)
    worker.run(change)

    assert why(api(), webhook) == (sentence, state)


def test_what_was_cancelled_or_never_sent_is_told_why(api: ApiOf, webhook: dict[str, Any]) -> None:
    make_findings(api(), 1)
    api().patch(f"/v1/webhooks/{webhook['id']}", {"status": "disabled"})
    assert why(api(), webhook) == ("It was cancelled at THEN; a replay sends it again.", "disabled")
    other = make_webhook(api())
    make_findings(api(), 1)
    unsent = history(api(), other)[0]["event_id"]
    assert why(api(), webhook, unsent)[0].startswith("The webhook was disabled;")
    api().delete(f"/v1/webhooks/{webhook['id']}")
    assert why(api(), webhook)[1] == "deleted"
