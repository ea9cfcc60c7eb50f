"""The sample session of `session.json`, and the digest: the mail about what was found in it."""

import email
import json
import time
from datetime import UTC, datetime, timedelta
from email.policy import default
from pathlib import Path
from typing import Any

from dev.demo.scene import Api, Expected, Scene, in_ms
from dev.demo.webhooks import Webhook

_SAMPLE = Path(__file__).with_name("session.json")
_ADDRESS = "security@northwind.example"
_RING_SECONDS = 1.0


def a_session(scene: Scene, watching: Webhook) -> tuple[Expected, dict[str, Any]]:
    """Run the session by a key pinned to its agent, and time its first finding's way.

    Returns the events that it must cause, and the record that it leaves.
    """
    sample, telling = json.loads(_SAMPLE.read_text("utf-8")), scene.telling
    told = sample["session"]
    telling.chapter("An agent's session, and what was found in it")
    # That of an earlier demo, or a new one.
    known = scene.api.get("/v1/agents", limit=200)["data"]
    same = [agent for agent in known if agent["name"] == sample["agent"]["name"]]
    agent = same[0] if same else scene.api.post("/v1/agents", sample["agent"])
    pin = {"agent_id": agent["id"], "principal": told["principal"]}
    key = scene.api.post("/v1/keys", {"name": agent["name"], "role": "write", "pin": pin})
    telling.say(f"The agent {agent['name']!r} acts for {told['principal']}:")
    telling.say(f"{told['title']}. Its key is pinned to the two of them.")
    telling.table([(each["severity"], each["title"]) for each in sample["findings"]])

    api = Api(scene.base_url, key["key"])
    session = api.post("/v1/sessions", {"agent_id": agent["id"], **told})
    first, *others = [{"session_id": session["id"], **each} for each in sample["findings"]]
    findings = [_first_finding(scene, api, first, watching)]
    findings += api.post("/v1/findings/batch", {"findings": others})["data"]
    record = api.post("/v1/records", {"session_id": session["id"], **sample["record"]})
    completed = api.post(f"/v1/sessions/{session['id']}/complete", sample["completion"])
    scene.api.delete(f"/v1/keys/{key['id']}")
    events = [("finding.created", each) for each in findings]
    return [*events, ("session.completed", completed)], record


def _first_finding(scene: Scene, api: Api, finding: dict[str, Any], watching: Webhook) -> Any:
    before = len(watching.receiver.arrivals)
    posted_at = time.monotonic()
    made = api.post("/v1/findings", finding)
    answered_at = time.monotonic()
    scene.wait_for("the first finding arrives", lambda: len(watching.receiver.arrivals) > before)
    arrival = watching.receiver.arrivals[before]
    scene.telling.claim(
        watching.genuine(arrival),
        f"the first finding was accepted {in_ms(answered_at - posted_at)} after it was sent, and "
        f"had reached {watching.receiver.name!r} after {in_ms(arrival.at - posted_at)}",
    )
    return made


def an_address(scene: Scene) -> None:
    """Let the tenant have an address, so that what is found from now on is mailed to it."""
    scene.api.patch("/v1/tenant/settings", {"notification_email": _ADDRESS})


def the_digest(scene: Scene, expected: Expected) -> None:
    """Show the mail about what was found; an earlier demo's if that was sent within a day."""
    telling = scene.telling
    telling.chapter("The digest: one mail a day about what is new")
    found = {data["id"] for kind, data in expected if kind == "finding.created"}
    earlier = _sent(scene)
    # The clock sends this run's own at any moment.
    if earlier and found & _findings(scene, earlier):
        earlier = None
    digest = earlier or _next(scene)
    # The file that is written in place of the mail where no mail server is set.
    raw = (scene.mail_folder / f"{digest['id']}.eml").read_bytes()
    mail = email.message_from_bytes(raw, policy=default)
    body = mail.get_body(("plain",))
    text = "" if body is None else str(body.get_content())
    if earlier:
        telling.say(f"There is none before a day has gone since {earlier['sent_at']}. This was it:")
    else:
        telling.claim(
            mail["To"] == _ADDRESS and all(f"/console/findings/{each}" in text for each in found),
            f"a mail went to {mail['To']}, and links to all {len(found)} findings",
            text,
        )
        listed = _findings(scene, digest)
        telling.claim(
            listed >= found,
            f"the API lists the {digest['findings']} findings that are this digest's, and no "
            "other's",
            listed,
        )
    telling.say()
    shown = [f"{name}: {mail[name]}" for name in ("From", "To", "Subject")]
    for line in (*shown, "", *text.splitlines()):
        telling.say(f"  | {line}".rstrip())
    telling.say()
    scene.api.patch("/v1/tenant/settings", {"notification_email": None})


def _sent(scene: Scene) -> dict[str, Any] | None:
    """Return the digest that was sent within the last day, if there is one."""
    since = datetime.now(UTC) - timedelta(days=1)
    sent = (each for each in scene.api.get("/v1/digests")["data"] if each["sent_at"])
    return next((each for each in sent if datetime.fromisoformat(each["sent_at"]) > since), None)


def _findings(scene: Scene, digest: dict[str, Any]) -> set[str]:
    """Return the ids of the findings that a digest is about."""
    return {each["id"] for each in scene.api.get("/v1/findings", digest_id=digest["id"])["data"]}


def _next(scene: Scene) -> dict[str, Any]:
    """Ring the clock's entry, which is rung each minute anyway, until the mail is out."""
    found: list[dict[str, Any]] = []
    rung_at = float("-inf")

    def sent() -> bool:
        nonlocal rung_at
        if time.monotonic() - rung_at > _RING_SECONDS:
            rung_at = time.monotonic()
            scene.now("send_digests")
        found.extend(filter(None, [_sent(scene)]))
        return bool(found)

    scene.wait_for("the digest is sent", sent)
    return found[0]
