"""The demo's webhooks: made at its beginning, switched off at its end."""

from dev.demo.api import Api
from dev.demo.receivers import Receiver
from dev.demo.scene import Scene, Webhook

_MARK = ", made by `make demo`"


def two_webhooks(scene: Scene) -> tuple[Webhook, Webhook]:
    """Make a webhook to each receiver, and try one; return them, the healthy receiver's first."""
    scene.telling.chapter("Two receivers, and a webhook to each")
    delete_left_over(scene.api)
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


def delete_left_over(api: Api) -> None:
    """Delete the webhooks of earlier demos, whose receivers have gone."""
    for path in _of_demos(api):
        api.delete(path)


def switch_off(api: Api) -> None:
    """Disable the webhooks, since their receivers go; their history stays."""
    for path in _of_demos(api):
        api.patch(path, {"status": "disabled"})


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


def _of_demos(api: Api) -> list[str]:
    # A tenant has at most 100 webhooks: one page holds them all.
    listed = api.get("/v1/webhooks", limit=200)["data"]
    return [
        f"/v1/webhooks/{each['id']}"
        for each in listed
        if (each["description"] or "").endswith(_MARK)
    ]
