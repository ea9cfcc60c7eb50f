"""The commands `python -m app.manage signing-key …`, `master-key …` and `console-key`."""

from contextlib import suppress
from datetime import datetime, timedelta

import click

from app.core import signing_keys
from app.core.blobs import store
from app.core.keys import console_sessions
from app.core.master_keys import resealing
from app.evidence import signing_certificates
from app.manage.service import line, require_yes, service, tell_untold
from app.settings import SettingError


@click.command()
@click.option("--name", type=line(), default="operator", help="Whose it is, for the audit.")
@click.option("--hours", type=click.IntRange(1, 24), default=8, show_default=True)
@click.option("--end-all", is_flag=True, help="End all, and their sessions.")
def console_key(name: str, hours: int, end_all: bool) -> None:
    """Make a key that signs an operator in to /console."""
    with service() as (settings, database):
        with database.across_tenants() as session:
            if end_all:
                print(f"ended: {console_sessions.end_operators(session)}")
                return
            key, ends = console_sessions.make_operator_key(session, name, timedelta(hours=hours))
        print(f"key: {key}\nat: {settings.base_url}/console/sign-in")
        print(f"It signs in once, and ends {ends:%Y-%m-%d %H:%M} UTC.")


@click.group()
def master_key() -> None:
    """Manage the keys of MASTER_KEYS."""


@master_key.command("status")
def master_key_status() -> int:
    """List what is sealed under each key and may be dropped; exit 1 if one is missing."""
    with service() as (settings, database):
        found = resealing.report(database, settings.master_keys)
        for each in found.lines():
            print(each)
    return 1 if found.missing else 0


@master_key.command()
@click.option(
    "--force", is_flag=True, help="Even if a process had another key first within three minutes."
)
def reseal(force: bool) -> None:
    """Reseal everything under the first key; workers do so each hour."""
    with service() as (settings, database):
        blobs = store.of(settings.blob_url)
        done = resealing.reseal(database, settings.master_keys, blobs, force=force)
        print(
            f"{done.resealed} sealed anew under {settings.master_keys.ids[0]}, of"
            f" {len(done.tenants)} tenants; {done.unopened} did not open"
        )
        print("`python -m app.manage master-key status` says which key can be dropped")


@click.group()
def signing_key() -> None:
    """Manage the keys that sign bundles."""


@signing_key.command()
def rotate() -> None:
    """Retire the key that signs now and make the next; old bundles still verify."""
    with service() as (settings, database):
        with database.across_tenants() as session:
            done = signing_keys.rotate(session, settings.master_keys)
        print(f"retired: {done.retired or 'none'}\ncurrent: {done.current}")
        tell_untold(settings, database, done.untold)


@signing_key.command("list")
def list_keys() -> None:
    """List every key there was."""
    with service() as (_settings, database), database.across_tenants() as session:
        for key in signing_keys.rows(session):
            state = "current" if key.retired_at is None else f"retired {key.retired_at:%Y-%m-%d}"
            if key.revoked_at is not None:
                state = f"revoked {key.revoked_at:%Y-%m-%d}: {key.revocation_reason}"
            print(f"{key.key_id}  {key.purpose:6}  {key.created_at:%Y-%m-%d}  {state}")


@signing_key.command()
@click.option("--key", metavar="KEY", help="The id of a retired key, instead of the current.")
def csr(key: str | None, **subject: str | None) -> None:
    """Print a certificate request (PKCS #10) for the current key, for an authority."""
    given = {name: value for name, value in subject.items() if value}
    if not given.keys() & {"organization", "common_name"}:
        raise SettingError("name the owner: --organization, or --common-name")
    with service() as (settings, database), database.across_tenants() as session:
        signer = signing_keys.of_bundles(session, settings.master_keys, key)
        try:
            print(signing_certificates.request(signer, given).decode(), end="")
        except ValueError as error:
            raise SettingError(f"no certificate has such a subject: {error}") from None


for _name in signing_certificates.SUBJECT:
    csr = click.option(f"--{_name.replace('_', '-')}", type=line())(csr)


def _moment(text: str) -> datetime:
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    raise click.BadParameter("write a moment as 2026-01-31T12:00:00Z")


@signing_key.command()
@click.argument("key")
@click.option("--reason", required=True, type=line(), help="Published with the key.")
@click.option("--since", type=_moment, help="When it may have leaked, if before now (RFC 3339).")
@click.option("--yes", is_flag=True, help="Confirm.")
def revoke(key: str, reason: str, since: datetime | None, yes: bool) -> None:
    """Revoke a key: only bundles that the log had by then, by other evidence, still verify."""
    require_yes(
        yes,
        "of all that this key signed only what a timestamp or a quorum of witnesses had seen by"
        " then is to verify",
    )
    with service() as (settings, database):
        with database.across_tenants() as session:
            done = signing_keys.revoke(session, settings.master_keys, key, reason, since)
        print(f"revoked: {key}" + (f"\ncurrent: {done.current}" if done.current else ""))
        tell_untold(settings, database, done.untold)
