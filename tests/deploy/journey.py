"""What an operator and an auditor do on a deployment, and what must hold of the database's role."""

import subprocess
import sys
from contextlib import AbstractContextManager, closing
from pathlib import Path

import psycopg
from psycopg import errors
from standardwebhooks.webhooks import Webhook as StandardWebhook

from tests.deploy.site import ASK_AGAIN_SECONDS, Site
from tests.e2e.harness import books
from tests.e2e.harness.books import Tenant
from tests.e2e.harness.stack import PLAIN, Caller, Hook
from tests.support.faults import until
from tests.support.programs.documents import block
from tests.support.servers.receivers import Receiver

_POWERS = (
    "SELECT rolsuper, rolbypassrls, rolcreaterole, rolcreatedb FROM pg_roles WHERE rolname = %s"
)


def an_event_arrives_signed(site: Site) -> None:
    """Have a finding posted at one `web` delivered, and read what became of it at the other."""
    with Receiver() as receiver:
        caller = site.caller(1)
        hook = caller.webhook(receiver)
        (finding,) = caller.findings(caller.session(), 1)
        until(lambda: receiver.requests)
        arrived = receiver.requests[0]
        StandardWebhook(hook.secret).verify(arrived.body, dict(arrived.headers))
        assert finding["id"] in arrived.body.decode()
        other = site.caller(2)
        told = Hook(other, hook.id, hook.secret).settled()
        assert (told["accepted"], told["succeeded"], told["balanced"]) == (1, 1, True), told
        caller.delete(hook.path)


def a_record_is_proven(site: Site) -> None:
    """Have a record proven by the log, opened by a link, and its pack verified as README says."""
    caller = site.caller(2)
    record = record_in_the_log(caller, caller.session())
    url = caller.post(f"/v1/records/{record}/share-links", {})["url"]
    token = url.rpartition("/")[2]
    anyone = Caller(site.base_urls[0], "")
    packed = f"/v1/records/{record}/evidence.zip?share_token={token}"
    until(lambda: caller.ask("GET", packed).status_code == 200, pause=ASK_AGAIN_SECONDS)
    assert anyone.ask("GET", f"/v1/records/{record}").status_code == 401
    folder = site.folder / "auditor"
    folder.mkdir()
    known = {"BASE_URL": site.base_urls[0], "record": record, "TOKEN": token}
    said = _in_a_shell(block("README.md", "sh", "verify.py pack.zip"), folder, known)
    assert said.endswith("\nVALID\n"), said
    audit = caller.get("/v1/audit/verify")
    assert audit["status"] == "intact", audit


def record_in_the_log(caller: Caller, session_id: str) -> str:
    """Make a record, and wait until the log proves it; return its id."""
    new = {"session_id": session_id, "kind": "refund", "title": "A refund", "content": {}}
    record = str(caller.post("/v1/records", new)["id"])
    until(lambda: caller.ask("GET", f"/v1/records/{record}/log-proof").ok, pause=ASK_AGAIN_SECONDS)
    return record


def _in_a_shell(script: str, folder: Path, known: dict[str, str]) -> str:
    done = subprocess.run(
        ["/bin/sh", "-e", "-c", script.replace("python3", sys.executable)],
        cwd=folder,
        env={**PLAIN, **known},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def the_role_is_bound(site: Site) -> None:
    """Show that the service's role has no power, and sees no row without a tenant."""
    with closing(psycopg.connect(site.servers.admin_url(site.database))) as connection:
        assert connection.execute(_POWERS, (site.role,)).fetchone() == (False,) * 4
        assert connection.execute("SELECT count(*) FROM findings").fetchone() != (0,)
    url = site.servers.database_url(site.role, site.database)
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        assert connection.execute("SELECT count(*) FROM findings").fetchone() == (0,)
        if not site.variant.two_roles:
            return
        for forbidden in (b"CREATE TABLE mine (id int)", b"UPDATE audit_entries SET body = body"):
            try:
                connection.execute(forbidden)
            except errors.InsufficientPrivilege:
                continue
            raise AssertionError(f"{site.role} may {forbidden.decode()}")


def tenant(site: Site) -> AbstractContextManager[Tenant]:
    """Return the root tenant with its webhooks, for a `with`."""
    return books.tenant(site.caller(1), site.servers.admin_url(site.database))


def moved(tenant: Tenant, site: Site, number: int) -> Tenant:
    """Return the same tenant as a caller of another site's `web` knows it."""
    caller = site.caller(number, tenant.caller.key)
    lanes = [(Hook(caller, hook.id, hook.secret), each) for hook, each in tenant.lanes]
    admin_url = site.servers.admin_url(site.database)
    return Tenant(caller, admin_url, tenant.session_id, lanes)
