"""The sample session of `session.json`, run through the API by a key pinned to its agent."""

import json
import time
from pathlib import Path
from typing import Any

from dev.demo.api import Api
from dev.demo.scene import Expected, Scene, Webhook, in_ms

_SAMPLE = Path(__file__).with_name("session.json")


def a_session(scene: Scene, watching: Webhook) -> tuple[Expected, dict[str, Any]]:
    """Run the session and time its first finding's way.

    Returns the events that it must cause, and the record that it leaves.
    """
    sample = json.loads(_SAMPLE.read_text("utf-8"))
    scene.telling.chapter("An agent's session, and what was found in it")
    agent = _agent(scene.api, sample["agent"])
    pin = {"agent_id": agent["id"], "principal": sample["session"]["principal"]}
    key = scene.api.post("/v1/keys", {"name": agent["name"], "role": "write", "pin": pin})
    _introduce(scene, sample)
    told = _run(scene, Api(scene.base_url, key["key"]), agent["id"], sample, watching)
    scene.api.delete(f"/v1/keys/{key['id']}")
    return told


def _agent(api: Api, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the agent of an earlier demo, or make it."""
    known = api.get("/v1/agents", limit=200)["data"]
    same = [agent for agent in known if agent["name"] == wanted["name"]]
    made: dict[str, Any] = same[0] if same else api.post("/v1/agents", wanted)
    return made


def _introduce(scene: Scene, sample: dict[str, Any]) -> None:
    session = sample["session"]
    scene.telling.say(f"The agent {sample['agent']['name']!r} acts for {session['principal']}:")
    scene.telling.say(f"{session['title']}. Its key is pinned to the two of them.")
    scene.telling.table([(each["severity"], each["title"]) for each in sample["findings"]])


def _run(
    scene: Scene, api: Api, agent_id: str, sample: dict[str, Any], watching: Webhook
) -> tuple[Expected, dict[str, Any]]:
    session = api.post("/v1/sessions", {"agent_id": agent_id, **sample["session"]})
    first, *others = [{"session_id": session["id"], **each} for each in sample["findings"]]
    findings = [_first_finding(scene, api, first, watching)]
    findings += api.post("/v1/findings/batch", {"findings": others})["data"]
    record = api.post("/v1/records", {"session_id": session["id"], **sample["record"]})
    completed = api.post(f"/v1/sessions/{session['id']}/complete", sample["completion"])
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
