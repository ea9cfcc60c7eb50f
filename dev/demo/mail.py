"""The digest: the mail about the session's findings, as it would arrive."""

import email
import time
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.policy import default
from typing import Any

from dev.demo.scene import Expected, Scene

_ADDRESS = "security@northwind.example"
_RING_SECONDS = 1.0


def an_address(scene: Scene) -> None:
    """Let the tenant have an address, so that what is found from now on is mailed to it."""
    scene.api.patch("/v1/tenant/settings", {"notification_email": _ADDRESS})


def the_digest(scene: Scene, expected: Expected) -> None:
    """Show the mail about what was found; an earlier demo's if that was sent within a day."""
    telling = scene.telling
    telling.chapter("The digest: one mail a day about what is new")
    earlier = _sent(scene)
    digest = earlier or _next(scene)
    # The file that is written in place of the mail where no mail server is set.
    raw = (scene.mail_folder / f"{digest['id']}.eml").read_bytes()
    mail = email.message_from_bytes(raw, policy=default)
    if earlier:
        telling.say(f"There is none before a day has gone since {earlier['sent_at']}. This was it:")
    else:
        _check(scene, digest, mail, expected)
    telling.say()
    shown = [f"{name}: {mail[name]}" for name in ("From", "To", "Subject")]
    for line in (*shown, "", *_text(mail).splitlines()):
        telling.say(f"  | {line}".rstrip())
    telling.say()
    scene.api.patch("/v1/tenant/settings", {"notification_email": None})


def _sent(scene: Scene) -> dict[str, Any] | None:
    """Return the digest that was sent within the last day, if there is one."""
    since = datetime.now(UTC) - timedelta(days=1)
    sent = (each for each in scene.api.get("/v1/digests")["data"] if each["sent_at"])
    return next((each for each in sent if datetime.fromisoformat(each["sent_at"]) > since), None)


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


def _check(scene: Scene, digest: dict[str, Any], mail: EmailMessage, expected: Expected) -> None:
    found = [data for kind, data in expected if kind == "finding.created"]
    text = _text(mail)
    scene.telling.claim(
        mail["To"] == _ADDRESS and all(f"/console/findings/{each['id']}" in text for each in found),
        f"a mail went to {mail['To']}, and links to all {len(found)} findings",
        text,
    )
    listed = scene.api.get("/v1/findings", digest_id=digest["id"])["data"]
    scene.telling.claim(
        {each["id"] for each in listed} >= {each["id"] for each in found},
        f"the API lists the {digest['findings']} findings that are this digest's, and no other's",
        listed,
    )


def _text(mail: EmailMessage) -> str:
    body = mail.get_body(("plain",))
    return "" if body is None else str(body.get_content())
