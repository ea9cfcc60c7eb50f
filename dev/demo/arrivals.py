"""Deliveries to the two receivers: one's at once, the other's by retries and a replay."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from dev.demo.receivers import OK, UNPROCESSABLE
from dev.demo.scene import Expected, Scene, Webhook, in_ms

_OPEN = ("pending", "sending", "retrying")


def what_arrived_at_once(scene: Scene, webhook: Webhook, expected: Expected) -> None:
    """Check what the healthy receiver got."""
    receiver, telling, count = webhook.receiver, scene.telling, len(expected)
    telling.chapter(f"{receiver.name}: takes everything")
    # And the test.
    scene.wait_for(f"all {count} events arrive", lambda: len(receiver.accepted()) > count)
    events = [each for each in receiver.accepted().values() if each.sequence is not None]
    events.sort(key=lambda each: each.sequence or 0)
    telling.claim(
        webhook.all_genuine(),
        f"{len(events)} of {count} events arrived, and `standardwebhooks` verifies each signature",
    )
    telling.claim(
        [each.sequence for each in events] == list(range(1, count + 1)),
        f"their sequence numbers are 1 to {count}, without a gap",
        [each.sequence for each in events],
    )
    bodies = [json.loads(each.body) for each in events]
    telling.claim(
        {body["data"]["id"]: (body["type"], body["data"]) for body in bodies}
        == {data["id"]: (event_type, data) for event_type, data in expected},
        "each body says exactly what the API answers for that finding or session",
    )


def what_was_retried(scene: Scene, webhook: Webhook, expected: Expected) -> dict[str, Any]:
    """Check what the failing receiver got; return the one delivery that failed for good."""
    receiver, telling, count = webhook.receiver, scene.telling, len(expected)
    telling.chapter(f"{receiver.name}: fails, and recovers")
    scene.wait_for("every delivery is settled", lambda: _all_settled(scene, webhook, count))
    deliveries = _with_attempts(scene, webhook)
    telling.table(map(_row, deliveries))
    succeeded = [each for each in deliveries if each["status"] == "succeeded"]
    retried = [each for each in succeeded if each["attempt_count"] > 1]
    refused = [each for each in receiver.arrivals if each.status != OK]
    telling.claim(
        retried and {each["event_id"] for each in succeeded} == set(receiver.accepted()),
        f"{len(succeeded)} of {count} events arrived once it was up again, {len(retried)} of them "
        f"by a retry; it had refused {len(refused)} attempts",
    )
    telling.claim(
        webhook.all_genuine(), "every attempt was signed, the retries anew with a time of their own"
    )
    failed = [each for each in deliveries if each["status"] == "failed"]
    telling.claim(
        [each["last_attempt"]["status"] for each in failed] == [UNPROCESSABLE],
        "the critical finding was refused to the end: it has failed, and its history says why",
        [each["status"] for each in deliveries],
    )
    return failed[0]


def a_replay(scene: Scene, webhook: Webhook, failed: dict[str, Any]) -> None:
    """Send the failed delivery again, now that the receiver takes it."""
    receiver, telling, event = webhook.receiver, scene.telling, failed["event_id"]
    telling.chapter("A failed delivery, replayed")
    telling.say(f"{receiver.name!r} learns the severity; an operator asks for a replay.")
    scene.desk.learn()
    replay = scene.api.post(f"{webhook.path}/deliveries/{failed['id']}/replay")
    took = scene.wait_for("the replay arrives", lambda: event in receiver.accepted())
    attempts = [each for each in receiver.arrivals if each.id == event]
    telling.claim(
        replay["replay_of"] == failed["id"] and webhook.genuine(attempts[-1]),
        f"it arrived {in_ms(took)} after that and its signature verifies",
    )
    telling.claim(
        len({(each.body, each.sequence) for each in attempts}) == 1,
        f"id, number and bytes are those of the {len(attempts) - 1} attempts before",
    )


def _all_settled(scene: Scene, webhook: Webhook, count: int) -> bool:
    listed = scene.api.get(f"{webhook.path}/deliveries", limit=200)["data"]
    return len(listed) == count and not [each for each in listed if each["status"] in _OPEN]


def _with_attempts(scene: Scene, webhook: Webhook) -> list[dict[str, Any]]:
    """Return the webhook's deliveries, oldest first, each with every attempt."""
    listed = scene.api.get(f"{webhook.path}/deliveries", limit=200)["data"]
    return [scene.api.get(f"{webhook.path}/deliveries/{each['id']}") for each in reversed(listed)]


def _row(delivery: dict[str, Any]) -> tuple[object, ...]:
    about = delivery["payload"]["data"].get("severity", "")
    answers = ", ".join(_answers(delivery["attempts"]))
    return delivery["sequence"], delivery["event_type"], about, delivery["status"], answers


def _answers(attempts: list[dict[str, Any]]) -> Iterator[str]:
    """Tell what each attempt was answered, and how long after the first one."""
    times = [datetime.fromisoformat(each["at"]) for each in attempts]
    for attempt, at in zip(attempts, times, strict=True):
        answer = attempt["status"] or attempt["outcome"]
        later = (at - times[0]).total_seconds()
        yield f"{answer} after {later:.1f} s" if later else f"{answer}"
