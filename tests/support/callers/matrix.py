"""Who may do what: every route with what each caller gets, and a tenant with one of everything."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.support.callers.api import Answer, Api
from tests.support.callers.making import (
    finding_of,
    make_agent,
    make_finding,
    make_record,
    make_session,
    make_share_link,
    pin_of,
    record_of,
)
from tests.support.callers.sending import history, make_webhook

# Which callers reach a route with things that lie inside the pin "inside" and outside "outside".
# A pack is 202 and an export's file 404 because no worker builds here.
# r, w, a: keys with the role read, write, admin.
TABLE = """
                                            | no  | no pin      | inside      | outside
                                            | key | r   w   a   | r   w   a   | r   w   a
GET    /v1/keys                             | 401 | 200 200 200 | 200 200 200 | 200 200 200
GET    /v1/keys/self                        | 401 | 200 200 200 | 200 200 200 | 200 200 200
POST   /v1/keys                             | 401 | 403 403 201 | 403 403 201 | 403 403 403
DELETE /v1/keys/<key_id>                    | 401 | 403 403 204 | 403 403 204 | 403 403 404

GET    /v1/tenant/settings                  | 401 | 200 200 200 | 403 403 403 | 403 403 403
PATCH  /v1/tenant/settings                  | 401 | 403 403 200 | 403 403 403 | 403 403 403
GET    /v1/tenant/alerts                    | 401 | 200 200 200 | 403 403 403 | 403 403 403
PUT    /v1/tenant/alerts                    | 401 | 403 403 200 | 403 403 403 | 403 403 403
GET    /v1/tenant/alerts/mails              | 401 | 200 200 200 | 403 403 403 | 403 403 403

GET    /v1/agents                           | 401 | 200 200 200 | 200 200 200 | 200 200 200
POST   /v1/agents                           | 401 | 403 201 201 | 403 403 403 | 403 403 403
GET    /v1/agents/<agent_id>                | 401 | 200 200 200 | 200 200 200 | 404 404 404
PATCH  /v1/agents/<agent_id>                | 401 | 403 200 200 | 403 403 403 | 403 403 403
PUT    /v1/agents/by-external-id/<rest:external_id>
                                            | 401 | 403 201 201 | 403 403 403 | 403 403 403

GET    /v1/sessions                         | 401 | 200 200 200 | 200 200 200 | 200 200 200
POST   /v1/sessions                         | 401 | 403 201 201 | 403 201 201 | 403 404 404
GET    /v1/sessions/<session_id>            | 401 | 200 200 200 | 200 200 200 | 404 404 404
PUT    /v1/sessions/by-external-id/<rest:external_id>
                                            | 401 | 403 201 201 | 403 201 201 | 403 404 404
GET    /v1/sessions/<session_id>/statement  | 401 | 409 409 409 | 409 409 409 | 404 404 404
GET    /v1/sessions/<session_id>/evidence.zip
                                            | 401 | 409 409 409 | 409 409 409 | 404 404 404
POST   /v1/sessions/<session_id>/complete   | 401 | 403 200 200 | 403 200 200 | 403 404 404

GET    /v1/records                          | 401 | 200 200 200 | 200 200 200 | 200 200 200
POST   /v1/records                          | 401 | 403 201 201 | 403 201 201 | 403 404 404
POST   /v1/records/batch                    | 401 | 403 201 201 | 403 201 201 | 403 201 201
GET    /v1/records/<record_id>              | 401 | 200 200 200 | 200 200 200 | 404 404 404
GET    /v1/records/<record_id>/log-proof    | 401 | 200 200 200 | 200 200 200 | 404 404 404

GET    /v1/records/<record_id>/bundle       | 401 | 200 200 200 | 200 200 200 | 404 404 404
GET    /v1/records/<record_id>/prov.json    | 401 | 200 200 200 | 200 200 200 | 404 404 404
GET    /v1/records/<record_id>/evidence.zip
                                            | 401 | 202 202 202 | 202 202 202 | 404 404 404
GET    /v1/records/<record_id>/otlp-logs.json
                                            | 401 | 200 200 200 | 200 200 200 | 404 404 404
GET    /v1/records/<record_id>/otlp-traces.json
                                            | 401 | 200 200 200 | 200 200 200 | 404 404 404
GET    /v1/records/<record_id>/share-links  | 401 | 200 200 200 | 200 200 200 | 404 404 404
POST   /v1/records/<record_id>/share-links  | 401 | 403 403 201 | 403 403 201 | 403 403 404
DELETE /v1/records/<record_id>/share-links/<share_link_id>
                                            | 401 | 403 403 204 | 403 403 204 | 403 403 404

GET    /v1/holds                            | 401 | 200 200 200 | 403 403 403 | 403 403 403
POST   /v1/holds                            | 401 | 403 403 201 | 403 403 403 | 403 403 403
GET    /v1/holds/<hold_id>                  | 401 | 200 200 200 | 403 403 403 | 403 403 403
DELETE /v1/holds/<hold_id>                  | 401 | 403 403 204 | 403 403 403 | 403 403 403

GET    /v1/traces                           | 401 | 200 200 200 | 200 200 200 | 200 200 200
POST   /v1/traces                           | 401 | 403 200 200 | 403 200 200 | 403 200 200

GET    /v1/findings                         | 401 | 200 200 200 | 200 200 200 | 200 200 200
POST   /v1/findings                         | 401 | 403 201 201 | 403 201 201 | 403 404 404
POST   /v1/findings/batch                   | 401 | 403 201 201 | 403 201 201 | 403 404 404
GET    /v1/findings/<finding_id>            | 401 | 200 200 200 | 200 200 200 | 404 404 404
GET    /v1/findings/expired                 | 401 | 200 200 200 | 403 403 403 | 403 403 403

GET    /v1/rules                            | 401 | 200 200 200 | 403 403 403 | 403 403 403
POST   /v1/rules                            | 401 | 403 403 201 | 403 403 403 | 403 403 403
POST   /v1/rules/test                       | 401 | 403 202 202 | 403 403 403 | 403 403 403
GET    /v1/rules/examples                   | 401 | 200 200 200 | 403 403 403 | 403 403 403
GET    /v1/rules/<rule_id>                  | 401 | 200 200 200 | 403 403 403 | 403 403 403
PATCH  /v1/rules/<rule_id>                  | 401 | 403 403 200 | 403 403 403 | 403 403 403
DELETE /v1/rules/<rule_id>                  | 401 | 403 403 204 | 403 403 403 | 403 403 403
GET    /v1/rules/<rule_id>/versions         | 401 | 200 200 200 | 403 403 403 | 403 403 403
POST   /v1/rules/<rule_id>/backfill         | 401 | 403 403 202 | 403 403 403 | 403 403 403

GET    /v1/search                           | 401 | 200 200 200 | 200 200 200 | 200 200 200

GET    /v1/webhooks                         | 401 | 200 200 200 | 403 403 403 | 403 403 403
POST   /v1/webhooks                         | 401 | 403 403 201 | 403 403 403 | 403 403 403
GET    /v1/webhooks/<webhook_id>            | 401 | 200 200 200 | 403 403 403 | 403 403 403
PATCH  /v1/webhooks/<webhook_id>            | 401 | 403 403 200 | 403 403 403 | 403 403 403
DELETE /v1/webhooks/<webhook_id>            | 401 | 403 403 204 | 403 403 403 | 403 403 403
POST   /v1/webhooks/<webhook_id>/verify-signature
                                            | 401 | 403 200 200 | 403 403 403 | 403 403 403
POST   /v1/webhooks/<webhook_id>/check      | 401 | 403 202 202 | 403 403 403 | 403 403 403
POST   /v1/webhooks/<webhook_id>/rotate-secret
                                            | 401 | 403 403 200 | 403 403 403 | 403 403 403
POST   /v1/deliveries/replay                | 401 | 403 202 202 | 403 403 403 | 403 403 403
POST   /v1/webhooks/<webhook_id>/retry-now  | 401 | 403 202 202 | 403 403 403 | 403 403 403
POST   /v1/webhooks/<webhook_id>/deliveries/<delivery_id>/retry-now
                                            | 401 | 403 202 202 | 403 403 403 | 403 403 403
POST   /v1/webhooks/<webhook_id>/test       | 401 | 403 202 202 | 403 403 403 | 403 403 403
POST   /v1/webhooks/<webhook_id>/replay     | 401 | 403 202 202 | 403 403 403 | 403 403 403
GET    /v1/webhooks/<webhook_id>/accounting | 401 | 200 200 200 | 403 403 403 | 403 403 403
GET    /v1/webhooks/<webhook_id>/stats      | 401 | 200 200 200 | 403 403 403 | 403 403 403
GET    /v1/webhooks/<webhook_id>/decisions  | 401 | 200 200 200 | 403 403 403 | 403 403 403
GET    /v1/webhooks/<webhook_id>/deliveries | 401 | 200 200 200 | 403 403 403 | 403 403 403
GET    /v1/webhooks/<webhook_id>/deliveries/<delivery_id>
                                            | 401 | 200 200 200 | 403 403 403 | 403 403 403
POST   /v1/webhooks/<webhook_id>/deliveries/<delivery_id>/replay
                                            | 401 | 403 202 202 | 403 403 403 | 403 403 403

GET    /v1/stats                            | 401 | 200 200 200 | 403 403 403 | 403 403 403
GET    /v1/deliveries                       | 401 | 200 200 200 | 403 403 403 | 403 403 403
GET    /v1/deliveries/groups                | 401 | 200 200 200 | 403 403 403 | 403 403 403

GET    /v1/event-types                      | 401 | 200 200 200 | 200 200 200 | 200 200 200
GET    /v1/events                           | 401 | 200 200 200 | 200 200 200 | 200 200 200
GET    /v1/events/<event_id>                | 401 | 200 200 200 | 403 403 403 | 403 403 403

GET    /v1/digests                          | 401 | 200 200 200 | 403 403 403 | 403 403 403

GET    /v1/jobs                             | 401 | 200 200 200 | 403 403 403 | 403 403 403
GET    /v1/jobs/<job_id>                    | 401 | 200 200 200 | 403 403 403 | 403 403 403
POST   /v1/jobs/<job_id>/cancel             | 401 | 403 200 200 | 403 403 403 | 403 403 403
POST   /v1/jobs/<job_id>/resume             | 401 | 403 409 409 | 403 403 403 | 403 403 403
POST   /v1/jobs/<job_id>/retry              | 401 | 403 409 409 | 403 403 403 | 403 403 403

GET    /v1/exports                          | 401 | 200 200 200 | 403 403 403 | 403 403 403
POST   /v1/exports                          | 401 | 403 403 202 | 403 403 403 | 403 403 403
GET    /v1/exports/<export_id>              | 401 | 200 200 200 | 403 403 403 | 403 403 403
DELETE /v1/exports/<export_id>              | 401 | 403 403 204 | 403 403 403 | 403 403 403
GET    /v1/exports/<export_id>/statement    | 401 | 404 404 404 | 403 403 403 | 403 403 403
GET    /v1/exports/<export_id>/export.ndjson
                                            | 401 | 404 404 404 | 403 403 403 | 403 403 403

GET    /v1/audit                            | 401 | 200 200 200 | 403 403 403 | 403 403 403
GET    /v1/audit/verify                     | 401 | 200 200 200 | 403 403 403 | 403 403 403
GET    /v1/audit/anchors                    | 401 | 200 200 200 | 403 403 403 | 403 403 403
"""

_PERIOD = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"}
ROLES = ("read", "write", "admin")
PINS = ("no pin", "inside", "outside")
PREFIXES = {
    "key_id": "key",
    "agent_id": "agt",
    "session_id": "ses",
    "record_id": "rec",
    "share_link_id": "shr",
    "finding_id": "fnd",
    "webhook_id": "whk",
    "rule_id": "rul",
    "delivery_id": "dlv",
    "event_id": "evt",
    "job_id": "job",
    "export_id": "exp",
    "hold_id": "hld",
}


@dataclass(frozen=True)
class Row:
    """One route with the status that each caller gets."""

    method: str
    rule: str
    no_key: int
    expected: dict[tuple[str, str], int]

    def __str__(self) -> str:
        return f"{self.method} {self.rule}"

    @property
    def parameters(self) -> list[str]:
        return [name for name in PREFIXES if f"<{name}>" in self.rule]

    @property
    def needed(self) -> str:
        """The lowest role that a key without a pin needs."""
        return next(role for role in ROLES if self.expected[role, "no pin"] != 403)

    def refusal(self, role: str, pin: str) -> str:
        """Return the problem of a 403: the role is checked before the pin."""
        if self.expected[role, "no pin"] == 403:
            return "insufficient-role"
        return "wider-than-pin" if self.rule == "/v1/keys" else "pinned-key"


def rows() -> Iterator[Row]:
    route = ""
    for line in TABLE.splitlines()[3:]:
        name, *columns = line.split("|")
        route = name.strip() or route
        if columns:
            method, rule = route.split()
            statuses = [[int(status) for status in column.split()] for column in columns]
            yield Row(
                method,
                rule,
                statuses[0][0],
                {
                    (role, pin): statuses[1 + place][ROLES.index(role)]
                    for place, pin in enumerate(PINS)
                    for role in ROLES
                },
            )


ROWS = list(rows())


class World:
    """A tenant with one of everything; things lie under one pin."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._keys: dict[tuple[str, str], str] = {}
        self.session = make_session(api)
        self.pin = pin_of(self.session)
        self.webhook = make_webhook(api)
        self.record = make_record(api, self.session["id"])
        self.share_link = make_share_link(api, self.record["id"])
        self.finding = make_finding(api, self.session["id"])
        self.delivery = history(api, self.webhook)[0]
        self.hold = api.made("/v1/holds", {"reason": "r", "record_id": self.record["id"]})
        self.rule = api.made("/v1/rules", _rule_of(f"of {self.session['id']}"))
        self.job = api.made("/v1/webhooks/{id}/replay".format(**self.webhook), {}, status=202)
        self.export = api.made("/v1/exports", _PERIOD, status=202)
        self.key = api.made("/v1/keys", {"name": "n", "role": "read", "pin": self.pin})

    @property
    def share_links(self) -> str:
        """The path of its record's share links."""
        return f"/v1/records/{self.record['id']}/share-links"

    def ids(self) -> dict[str, str]:
        return {
            "key_id": self.key["id"],
            "agent_id": self.session["agent_id"],
            "session_id": self.session["id"],
            "record_id": self.record["id"],
            "share_link_id": self.share_link["id"],
            "finding_id": self.finding["id"],
            "rule_id": self.rule["id"],
            "webhook_id": self.webhook["id"],
            "delivery_id": self.delivery["id"],
            "event_id": self.delivery["event_id"],
            "job_id": self.job["id"],
            "export_id": self.export["id"],
            "hold_id": self.hold["id"],
        }

    def body(self, row: Row) -> Any:
        """Return a body that this route accepts from a caller who may send it."""
        finding = finding_of(self.session["id"])
        bodies = {
            "POST /v1/keys": {"name": "n", "role": "read", "pin": self.pin},
            "PATCH /v1/tenant/settings": {"bundle_visibility": "public"},
            "PUT /v1/tenant/alerts": {"emails": ["ops@example.com"]},
            "POST /v1/agents": {"name": "n"},
            "PATCH /v1/agents/<agent_id>": {"name": "n"},
            "PUT /v1/agents/by-external-id/<rest:external_id>": {},
            "POST /v1/sessions": self.pin,
            "PUT /v1/sessions/by-external-id/<rest:external_id>": self.pin,
            "POST /v1/sessions/<session_id>/complete": {"outcome": "succeeded"},
            "POST /v1/records": record_of(self.session["id"]),
            "POST /v1/records/batch": {"records": [record_of(self.session["id"])]},
            "POST /v1/records/<record_id>/share-links": {"expires_in_seconds": 60},
            "POST /v1/traces": {"resourceSpans": []},
            "POST /v1/holds": {"reason": "r", "record_id": self.record["id"]},
            "POST /v1/findings": finding,
            "POST /v1/findings/batch": {"findings": [finding]},
            "POST /v1/rules": _rule_of("another"),
            "POST /v1/rules/test": {**_rule_of("another"), "limit": 101},
            "PATCH /v1/rules/<rule_id>": {"title": "t"},
            "POST /v1/rules/<rule_id>/backfill": _PERIOD,
            "POST /v1/exports": _PERIOD,
            "POST /v1/webhooks": {"url": self.webhook["url"]},
            "PATCH /v1/webhooks/<webhook_id>": {"description": "d"},
            "POST /v1/webhooks/<webhook_id>/replay": {},
            "POST /v1/deliveries/replay": {},
            "POST /v1/webhooks/<webhook_id>/retry-now": {},
            "POST /v1/webhooks/<webhook_id>/verify-signature": {"headers": {}, "body": ""},
        }
        return bodies.get(str(row))

    def key_text(self, role: str, pin: str) -> str:
        """Return a key whose pin is none, this world's, or another's."""
        if (role, pin) not in self._keys:
            pinned = self._other_pin if pin == "outside" else {"inside": self.pin}.get(pin)
            body = {"name": "n", "role": role, "pin": pinned}
            self._keys[role, pin] = str(self.api.made("/v1/keys", body)["key"])
        return self._keys[role, pin]

    @cached_property
    def _other_pin(self) -> dict[str, str]:
        return {**self.pin, "agent_id": make_agent(self.api)["id"]}

    def shown(self, *lists: str) -> dict[str, Any]:
        """Return what the routes that read one thing answer about this world, and these lists."""
        one = [row for row in ROWS if row.method == "GET" and row.rule.endswith(">")]
        answers = {str(row): send(self.api, row, self) for row in one}
        answers |= {path: self.api.get(path) for path in lists}
        assert {answer.status_code for answer in answers.values()} == {200}
        return {name: answer.json for name, answer in answers.items()}


def send(
    caller: Api, row: Row, world: World, headers: Mapping[str, str] | None = None, /, **changed: str
) -> Answer:
    """Send the route's request about the world's things, some ids changed."""
    named = world.ids() | changed
    path = row.rule.replace("<rest:external_id>", "an/id of their own")
    for name in row.parameters:
        path = path.replace(f"<{name}>", named[name])
    if row.rule.endswith("/decisions"):
        path += f"?event_id={named['event_id']}"
    if row.rule == "/v1/search":
        path += "?q=a"
    body = world.body(row)
    options = {} if body is None else {"json": body}
    return caller.request(
        row.method, path, headers={"Prefer": "wait=0", **(headers or {})}, **options
    )


def _rule_of(name: str) -> dict[str, Any]:
    return {"name": name, "on": "record", "when": "true", "severity": "low", "title": "t"}
