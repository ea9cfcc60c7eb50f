"""Mail seen from the console: where a mail's links lead."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from flask import Flask

from app import ids
from app.core.digests import message
from app.core.digests.content import Content, Group, Line, Part, Trouble
from app.core.digests.links import Links
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.console import BASE, Visitor, hidden
from tests.support.callers.making import make_finding, make_session

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def places(api: ApiOf, webhook: dict[str, Any]) -> list[str]:
    """Return the path of each link in a mail with a finding and a webhook of the tenant."""
    finding = make_finding(api(), make_session(api())["id"])
    line = Line(ids.read("fnd", finding["id"]), "A title", "bob", AT, again=False)
    trouble = Trouble(ids.read("whk", webhook["id"]), "https://hooks.example.com", "failing")
    parts = [Part(ids.new(), AT) for _ in range(12)]
    content = Content(
        *("Acme", 1, 0, {"high": 1}, [Group("high", "pii", 1, [line])], 0, 1, [trouble], parts)
    )
    addresses = {"sender": "r@example.com", "recipient": "dana@example.com"}
    letter = message.write(parts[0].id, content, Links(BASE), "t" * 90, **addresses)
    text = letter.content.replace(b"=\r\n", b"").replace(b"=3D", b"=").decode()
    found = re.findall(rf'{BASE}(/[^\s"<>]*)', text)
    return sorted(set(found) - {f"/unsubscribe/{'t' * 90}"})


def test_each_link_in_a_mail_opens_its_page_through_signing_in(
    places: list[str], app: Flask, tenant: FreshTenant
) -> None:
    assert len(places) == 14, "a finding, a webhook, ten digests, the list, the settings"
    for place in places:
        visitor = Visitor(app)
        led = visitor.get(place, **{"Sec-Fetch-Site": "cross-site"})
        assert led.status_code == 303, (place, led.text)
        form = hidden(visitor.get(led.headers["Location"]).text, "/console/sign-in")
        answer = visitor.sign_in(tenant.root_key, **form)
        assert answer.headers["Location"] == place
        page = visitor.get(place, **{"Sec-Fetch-Site": "cross-site"})
        assert (page.status_code, page.mimetype) == (200, "text/html"), place
