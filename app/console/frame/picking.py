"""Names typed in place of ids: which objects they may mean, by the name of the field."""

import re

from flask import g
from werkzeug.datastructures import MultiDict

from app.api.http.services import caller, services, transaction
from app.core import lookup

MOST = 20
"""The most choices that are offered for a name."""

# The kinds whose ids a field takes, by the field's name: none stands for all that have names.
_KINDS: dict[str, tuple[str, ...]] = {
    "agent_id": ("agt",),
    "pin.agent_id": ("agt",),
    "session_id": ("ses",),
    "webhook_id": ("whk",),
    "record_id": ("rec",),
    "finding_id": ("fnd",),
    "actor": ("key",),
    "target": (),
}
_ID = re.compile(r"[a-z]{3}_[0-9a-f]{32}", re.ASCII)


def resolve(typed: MultiDict[str, str]) -> MultiDict[str, str]:
    """Return the input with ids in place of names that mean one object alone.

    What other names may mean is kept for `choices`.
    """
    names = {
        name: text
        for name, text in typed.items()
        if name in _KINDS and text.strip() and not _ID.fullmatch(text) and "caller" in g
    }
    if not names:
        return typed
    if g.get("picked_for") != names:
        g.picked_for, g.picks = names, _picks(names)
    meant = {name: found[0][0] for name, found in g.picks.items() if len(found) == 1}
    pairs = [(name, meant.get(name, text)) for name, text in typed.items(multi=True)]
    return MultiDict(pairs)


def kinds(field: str) -> tuple[str, ...]:
    """Return the prefixes of the ids that a field takes; none stands for all that have names."""
    return _KINDS.get(field, ())


def choices(field: str) -> list[tuple[str, str]]:
    """Return the ids and titles of the objects that the name typed into a field may mean."""
    found: list[tuple[str, str]] = g.get("picks", {}).get(field, [])
    return found if len(found) > 1 else []


def advice(field: str) -> str | None:
    """Return what to tell of a field whose text is neither an id nor one object's name."""
    if field not in g.get("picks", {}):
        return None
    return "Several are named so: choose one." if choices(field) else "Nothing has this name or id."


def _picks(names: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    keys = services().settings.master_keys
    picks = {}
    with transaction() as session:
        for name, text in names.items():
            hits = lookup.named(session, caller(), keys, _KINDS[name], text, MOST)
            found = [(lookup.represent(hit, "")["id"], hit.title) for hit in hits]
            # A whole name goes before those that it is a part of.
            whole = [each for each in found if each[1].lower() == text.strip().lower()]
            picks[name] = whole if len(whole) == 1 else found
    return picks
