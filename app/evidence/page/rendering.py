"""HTML without script and without anything from elsewhere; every text is escaped.

The same arguments give the same bytes: `record.html` of a pack is written here.
"""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app.evidence.bundle import Bundle
from app.evidence.page.view import shown, shown_findings
from app.lib.text_sanitizer import visible

_TEMPLATES = Path(__file__).parent / "templates"
STYLE = (_TEMPLATES / "shared" / "page.css").read_text("utf-8")
POLICY = (
    f"default-src 'none'; style-src 'sha256-"
    f"{base64.b64encode(sha256(STYLE.encode()).digest()).decode()}'; base-uri 'none'"
)
"""The Content-Security-Policy of these pages, but for forms and frames."""


def in_words(time: datetime) -> str:
    """Write a time for people: `31 January 2026, 12:00:00 UTC`."""
    return f"{time.astimezone(UTC):%-d %B %Y, %H:%M:%S} UTC"


def environment(*folders: Path) -> Environment:
    """Return an environment for these templates and those in more folders."""
    made = Environment(
        loader=FileSystemLoader([_TEMPLATES, *folders]), autoescape=True, undefined=StrictUndefined
    )
    made.filters |= {"in_words": in_words, "visible": visible}
    made.globals |= {"style": STYLE, "policy": None}
    return made


_ENVIRONMENT = environment()


def record_html(
    read: Bundle, listed: Sequence[Mapping[str, Any]], total: int, **told: Any
) -> bytes:
    """Return a pack's `record.html`: the share page of a bundle, with the pack's own facts.

    `listed` are the first of `total` findings, as their GET answers. `told` has `sha256`, `size`
    and `signature` of the bundle, `chain` of its key or None, `place` in its session once that is
    sealed, `index` and `origin` of its leaf, `anchored_by`, `release`, `base_url`.
    """
    record = read["record"]
    facts = {"key_id": read["key_id"], **{name: told[name] for name in _OF_BUNDLE}}
    of_record = {
        **{name: record[name] for name in ("id", "title", "kind", "principal", "labels")},
        "agent_id": record["agent"]["id"],
        "session_id": record["session"]["id"],
        "bundle": facts,
        "log": {"index": told["index"]},
    }
    inside, findings = shown(read), shown_findings(listed)
    created_at = datetime.fromisoformat(record["created_at"])
    occurred_at = record["occurred_at"]
    page = _ENVIRONMENT.get_template("shared/record.html").render(
        told,
        record=of_record,
        agent={"version": "", "external_id": "", **inside.agent},
        occurred_at=created_at if occurred_at is None else datetime.fromisoformat(occurred_at),
        created_at=created_at,
        inside=inside,
        findings=findings,
        more_findings=total - len(findings),
        links=None,
        policy=f"{POLICY}; form-action 'none'",
    )
    return page.encode()


_OF_BUNDLE = ("sha256", "size", "signature")
