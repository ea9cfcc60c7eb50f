"""The demo's webhooks: made, delivered to at once, by retries and by a replay, and switched off."""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dev.demo.receivers import OK, UNAUTHORIZED, UNPROCESSABLE, Arrival, Receiver
from dev.demo.scene import Api, Expected, Scene, in_ms

_MARK = ", made by `make demo`"
_OPEN = ("pending", "sending", "retrying")
_LEFT_TO_DO = 12


@dataclass(frozen=True)
class Webhook:
    """A webhook of the demo, and the receiver behind it."""

    receiver: Receiver
    path: str

    def genuine(self, arrival: Arrival) -> bool:
        """Say whether a request was signed, by Standard Webhooks and by our own header."""
        # The receiver answers 401 to what `standardwebhooks` does not verify.
        if arrival.status == UNAUTHORIZED:
            return False
        key = base64.b64decode(self.receiver.secret.removeprefix("whsec_"))
        header = arrival.headers["x-service-signature-v2"]
        parts = [part.split("=", 1) for part in header.split(",")]
        content = f"{arrival.id}.{dict(parts)['t']}.".encode() + arrival.body
        expected = hmac.new(key, content, hashlib.sha256).hexdigest()
        return any(name == "v2" and hmac.compare_digest(value, expected) for name, value in parts)

    def all_genuine(self) -> bool:
        """Say whether every request so far was."""
        return all(map(self.genuine, self.receiver.arrivals))


def two_webhooks(scene: Scene) -> tuple[Webhook, Webhook]:
    """Make a webhook to each receiver, and try one; return them, the healthy receiver's first."""
    scene.telling.chapter("Two receivers, and a webhook to each")
    # Those of earlier demos, whose receivers have gone.
    for path in _of_demos(scene.api):
        scene.api.delete(path)
    security = register(scene.api, scene.security)
    ticketing = register(scene.api, scene.ticketing)
    scene.telling.table(
        [
            (scene.security.name, scene.security.url, "takes everything"),
            (scene.ticketing.name, scene.ticketing.url, "is down (503) for its first 2 seconds;"),
            ("", "", "then it refuses (422) what is critical"),
        ]
    )
    scene.api.post(f"{security.path}/test")
    scene.wait_for("a test delivery arrives", lambda: scene.security.arrivals)
    test = scene.security.arrivals[0]
    scene.telling.claim(
        security.genuine(test) and test.sequence is None,
        "a test delivery arrived; its signature verifies, and it takes no sequence number",
    )
    return security, ticketing


def register(api: Api, receiver: Receiver) -> Webhook:
    """Make a webhook to a receiver."""
    made = api.post(
        "/v1/webhooks",
        {
            "url": receiver.url,
            "event_types": ["finding.created", "session.completed"],
            "description": receiver.name + _MARK,
        },
    )
    receiver.secret = made["secret"]
    return Webhook(receiver, f"/v1/webhooks/{made['id']}")


def switch_off(api: Api) -> None:
    """Disable the webhooks, since their receivers go; their history stays."""
    for path in _of_demos(api):
        api.patch(path, {"status": "disabled"})


def _of_demos(api: Api) -> list[str]:
    # A tenant has at most 100 webhooks: one page holds them all.
    return [
        f"/v1/webhooks/{each['id']}"
        for each in api.get("/v1/webhooks", limit=200)["data"]
        if (each["description"] or "").endswith(_MARK)
    ]


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

    path = f"{webhook.path}/deliveries"

    def listed() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = scene.api.get(path, limit=200)["data"]
        return found

    scene.wait_for(
        "every delivery is settled",
        lambda: [each["status"] in _OPEN for each in listed()] == [False] * count,
    )
    # Oldest first, each with every attempt.
    deliveries: list[dict[str, Any]] = [
        scene.api.get(f"{path}/{each['id']}") for each in reversed(listed())
    ]
    telling.table(
        (
            each["sequence"],
            each["event_type"],
            each["payload"]["data"].get("severity", ""),
            each["status"],
            ", ".join(_answers(each["attempts"])),
        )
        for each in deliveries
    )
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


def _answers(attempts: list[dict[str, Any]]) -> Iterator[str]:
    """Tell what each attempt was answered, and how long after the first one."""
    times = [datetime.fromisoformat(each["at"]) for each in attempts]
    for attempt, at in zip(attempts, times, strict=True):
        answer = attempt["status"] or attempt["outcome"]
        later = (at - times[0]).total_seconds()
        yield f"{answer} after {later:.1f} s" if later else f"{answer}"


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


def leave_work(scene: Scene, receiver: Receiver) -> None:
    """Leave an operator failures of one cause, and a replay that its canary stopped."""
    webhook = register(scene.api, receiver)
    agent = scene.api.post("/v1/agents", {"name": "billing-desk"})
    opened = scene.api.post("/v1/sessions", {"agent_id": agent["id"], "principal": "customer-7"})
    finding = {"session_id": opened["id"], "rule": "billing.total", "severity": "medium"}
    findings = [{**finding, "title": f"Invoice {n} has no total"} for n in range(_LEFT_TO_DO)]
    scene.api.post("/v1/findings/batch", {"findings": findings})
    path, failed = f"{webhook.path}/deliveries", {"status": "failed", "limit": 200}
    scene.wait_for(
        "what the receiver refuses has failed",
        lambda: len(scene.api.get(path, **failed)["data"]) == _LEFT_TO_DO,
    )
    job = scene.api.post(f"{webhook.path}/replay", {"canary": 1})
    scene.wait_for(
        "the canary of a replay fails",
        lambda: scene.api.get(f"/v1/jobs/{job['id']}")["status"] == "cancelled",
    )
