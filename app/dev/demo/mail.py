"""The digest: the mail about the session's findings, as it would arrive, and how it is ended."""

import email
import time
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import requests

from app.dev.demo.scene import Expected, Scene

_ADDRESS = "security@northwind.example"
_SETTINGS = "/v1/tenant/settings"
_A_DAY = timedelta(hours=24)
_TIMEOUT_SECONDS = 10
_RING_SECONDS = 1.0


def an_address(scene: Scene) -> None:
    """Let the tenant have an address, so that what is found from now on is mailed to it."""
    scene.api.patch(_SETTINGS, {"notification_email": _ADDRESS})


def the_digest(scene: Scene, expected: Expected) -> None:
    """Show the mail about what was found, and end the mails by its link."""
    telling = scene.telling
    telling.chapter("The digest: one mail a day about what is new")
    earlier = _of_the_last_day(scene)
    if earlier is None:
        digest = _next(scene)
        mail = _read(scene.mail_folder, digest)
        _check(scene, digest, mail, expected)
        _show(scene, mail)
        _end(scene, mail)
    else:
        telling.say(f"An earlier demo's went out at {earlier['sent_at']}: there is none before a")
        telling.say("day has gone. This was it:")
        mail = _read(scene.mail_folder, earlier)
        _show(scene, mail)
        _end_nothing(scene, mail)


def _of_the_last_day(scene: Scene) -> dict[str, Any] | None:
    since = datetime.now(UTC) - _A_DAY
    for digest in scene.api.get("/v1/digests")["data"]:
        if digest["sent_at"] and datetime.fromisoformat(digest["sent_at"]) > since:
            return dict(digest)
    return None


def _next(scene: Scene) -> dict[str, Any]:
    """Ring the clock's entry, which is rung each minute anyway, until the mail is out."""
    found: list[dict[str, Any]] = []
    rung_at = float("-inf")

    def sent() -> bool:
        nonlocal rung_at
        if time.monotonic() - rung_at > _RING_SECONDS:
            rung_at = time.monotonic()
            scene.now("send_digests")
        found[:] = [each for each in scene.api.get("/v1/digests")["data"] if each["sent_at"]]
        return bool(found)

    scene.wait_for("the digest is sent", sent)
    return found[0]


def _read(folder: Path, digest: dict[str, Any]) -> EmailMessage:
    """Read what stands for the mail where no mail server is set."""
    raw = (folder / f"{digest['id']}.eml").read_bytes()
    return email.message_from_bytes(raw, policy=default)


def _check(scene: Scene, digest: dict[str, Any], mail: EmailMessage, expected: Expected) -> None:
    found = [data for kind, data in expected if kind == "finding.created"]
    text = _text(mail)
    scene.telling.claim(
        mail["To"] == _ADDRESS and all(f"/v1/findings/{each['id']}" in text for each in found),
        f"a mail went to {mail['To']}, and links to all {len(found)} findings",
        text,
    )
    listed = scene.api.get("/v1/findings", digest_id=digest["id"])["data"]
    scene.telling.claim(
        {each["id"] for each in listed} >= {each["id"] for each in found},
        f"the API lists the {digest['findings']} findings that are this digest's, and no other's",
        listed,
    )


def _show(scene: Scene, mail: EmailMessage) -> None:
    scene.telling.say()
    for name in ("From", "To", "Subject"):
        scene.telling.say(f"  | {name}: {mail[name]}")
    for line in ("", *_text(mail).splitlines()):
        scene.telling.say(f"  | {line}".rstrip())
    scene.telling.say()


def _end(scene: Scene, mail: EmailMessage) -> None:
    """Open the unsubscribe link, which changes nothing, then click it, which ends the mails."""
    link = _unsubscribe_link(mail)
    with requests.Session() as anybody:
        anybody.trust_env = False
        looked_at = anybody.get(link, timeout=_TIMEOUT_SECONDS)
        before = scene.api.get(_SETTINGS)["notification_email"]
        clicked = _click(anybody, link)
        after = scene.api.get(_SETTINGS)["notification_email"]
    scene.telling.claim(
        (looked_at.ok, before, clicked.ok, after) == (True, _ADDRESS, True, None),
        "reading its link ended nothing; one click did, without a key (RFC 8058)",
        (before, after),
    )


def _end_nothing(scene: Scene, mail: EmailMessage) -> None:
    """Click the link of a mail from before the address was set anew, then clear the address."""
    with requests.Session() as anybody:
        anybody.trust_env = False
        _click(anybody, _unsubscribe_link(mail))
    after = scene.api.get(_SETTINGS)["notification_email"]
    scene.telling.claim(
        after == _ADDRESS,
        "its link ends nothing any more: the address has been set anew since",
        after,
    )
    scene.api.patch(_SETTINGS, {"notification_email": None})


def _unsubscribe_link(mail: EmailMessage) -> str:
    return str(mail["List-Unsubscribe"]).strip("<>")


def _click(anybody: requests.Session, link: str) -> requests.Response:
    one_click = {"List-Unsubscribe": "One-Click"}
    return anybody.post(link, data=one_click, timeout=_TIMEOUT_SECONDS)


def _text(mail: EmailMessage) -> str:
    body = mail.get_body(("plain",))
    return "" if body is None else str(body.get_content())
