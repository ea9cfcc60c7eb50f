"""A worker that judges when a test says so."""

from typing import Any

import pytest
from sqlalchemy import text

from jobs.actors import judge
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import make_session, record_of, uuid_of

RULE = {
    "name": "large-refund",
    "on": "record",
    "when": "content.amount > 1000",
    "severity": "high",
    "title": "{{content.amount}} for {{record.principal}}",
    "enabled": True,
}
STEP = {
    "name": "refund",
    "kind": "execute_tool",
    "started_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T00:00:01Z",
    "status": "ok",
    "attributes": {},
}


class Ruled:
    """A tenant with rules: its records, what is judged, and what was found."""

    def __init__(self, api: Api, tenant: FreshTenant, runtime: Runtime) -> None:
        self.api = api
        self.tenant = tenant
        self.runtime = runtime
        self.session = make_session(api)

    def rule(self, **fields: Any) -> dict[str, Any]:
        """Create a rule."""
        return self.api.made("/v1/rules", RULE | fields)

    def change(self, rule: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """Change a rule."""
        changed = self.api.patch(f"/v1/rules/{rule['id']}", fields)
        assert changed.status_code == 200, changed.json
        return dict(changed.json)

    def read(self, rule: dict[str, Any]) -> dict[str, Any]:
        return dict(self.api.get(f"/v1/rules/{rule['id']}").json)

    def record(self, content: Any = None, **fields: Any) -> dict[str, Any]:
        """Post a record."""
        body = record_of(self.session["id"], content=content, **fields)
        return self.api.made("/v1/records", body)

    def judge(self) -> None:
        """Take a worker's turns until nothing is left to judge."""
        with self.runtime.database.transaction(self.tenant.id) as session:
            before = self.left(session)
        while before:
            judge.run(self.runtime, str(self.tenant.id))
            with self.runtime.database.transaction(self.tenant.id) as session:
                before = self.left(session)

    @staticmethod
    def left(session: Any) -> int:
        return int(session.scalar(text("SELECT count(*) FROM rule_work")))

    def work(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run a job to its end."""
        work_on(self.runtime, self.tenant.id, uuid_of(job["id"]))
        return dict(self.api.get(f"/v1/jobs/{job['id']}").json)

    def findings(self, **filters: str) -> list[dict[str, Any]]:
        """Return the findings, oldest first."""
        query = "&".join(f"{name}={value}" for name, value in filters.items())
        found: list[dict[str, Any]] = self.api.get(f"/v1/findings?limit=200&{query}").json["data"]
        return found[::-1]

    def titles(self) -> list[str]:
        return [each["title"] for each in self.findings()]


@pytest.fixture
def ruled(api: ApiOf, tenant: FreshTenant, runtime: Runtime) -> Ruled:
    return Ruled(api(), tenant, runtime)
