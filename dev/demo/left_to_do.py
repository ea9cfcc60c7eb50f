"""Work left for an operator at the console: failures of one cause, and a stopped replay."""

from dev.demo import webhooks
from dev.demo.receivers import UNPROCESSABLE, Event, Receiver
from dev.demo.scene import Scene

_FINDINGS = 12


def takes_nothing(event: Event) -> int:
    """Refuse any event."""
    return UNPROCESSABLE


def leave(scene: Scene, receiver: Receiver) -> None:
    """Let findings fail at a receiver that refuses them, and a replay's canary too."""
    webhook = webhooks.register(scene.api, receiver)
    agent = scene.api.post("/v1/agents", {"name": "billing-desk"})
    opened = scene.api.post("/v1/sessions", {"agent_id": agent["id"], "principal": "customer-7"})
    finding = {"session_id": opened["id"], "rule": "billing.total", "severity": "medium"}
    findings = [{**finding, "title": f"Invoice {n} has no total"} for n in range(_FINDINGS)]
    scene.api.post("/v1/findings/batch", {"findings": findings})
    path = f"{webhook.path}/deliveries"
    failed = {"status": "failed", "limit": 200}
    scene.wait_for(
        "what the receiver refuses has failed",
        lambda: len(scene.api.get(path, **failed)["data"]) == _FINDINGS,
    )
    job = scene.api.post(f"{webhook.path}/replay", {"canary": 1})
    scene.wait_for(
        "the canary of a replay fails",
        lambda: scene.api.get(f"/v1/jobs/{job['id']}")["status"] == "cancelled",
    )
