"""The commands `python -m app.manage signing-key …`, `master-key …` and `console-key`."""

import argparse
import re
from contextlib import suppress
from datetime import datetime, timedelta

from app.core import signing_keys
from app.core.blobs import store
from app.core.keys import operator_sessions
from app.core.master_keys import resealing
from app.lib.crypto import signing_certificates
from app.manage.service import require_yes, service, tell_untold
from app.settings import SettingError


def add_signing_keys(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `signing-key`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser(
        "rotate", help="retire the key that signs now and make the next; old bundles still verify"
    ).set_defaults(run=_rotate)
    commands.add_parser("list", help="list every key there was").set_defaults(run=_list)
    csr = commands.add_parser(
        "csr", help="print a certificate request (PKCS #10) for the current key, for an authority"
    )
    for name in signing_certificates.SUBJECT:
        csr.add_argument(f"--{name.replace('_', '-')}", metavar="TEXT", type=_part)
    csr.add_argument("--key", metavar="KEY", help="the id of a retired key, instead of the current")
    csr.set_defaults(run=_csr)
    revoke = commands.add_parser(
        "revoke",
        help="revoke a key: only bundles that the log had by then, by other evidence, still verify",
    )
    revoke.add_argument("key", metavar="KEY", help="its id, as `list` shows it")
    revoke.add_argument("--reason", required=True, type=_reason, help="published with the key")
    revoke.add_argument(
        "--since", type=_moment, help="when it may have leaked, if that was before now (RFC 3339)"
    )
    revoke.add_argument("--yes", action="store_true", help="confirm")
    revoke.set_defaults(run=_revoke)


def add_master_keys(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `master-key`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser(
        "status",
        help="list what is sealed under each key and may be dropped; exit 1 if one is missing",
    ).set_defaults(run=_master_key_status)
    reseal = commands.add_parser(
        "reseal", help="reseal everything under the first key; workers do so each hour"
    )
    reseal.add_argument(
        "--force",
        action="store_true",
        help="even if a process had another key first within three minutes",
    )
    reseal.set_defaults(run=_reseal)


def add_console_key(parser: argparse.ArgumentParser) -> None:
    """Add the options of `console-key`."""
    parser.add_argument("--name", type=_part, default="operator", help="whose it is, for the audit")
    parser.add_argument("--hours", type=_hours, default=8, help="until it ends (1 to 24; 8)")
    parser.add_argument("--end-all", action="store_true", help="end all, and their sessions")
    parser.set_defaults(run=_console_key)


def _console_key(arguments: argparse.Namespace) -> None:
    with service() as (settings, database):
        with database.across_tenants() as session:
            if arguments.end_all:
                print(f"ended: {operator_sessions.end_all(session)}")
                return
            lasts = timedelta(hours=arguments.hours)
            made = operator_sessions.make(session, arguments.name, lasts)
        print(f"key: {made.text}\nat: {settings.base_url}/console/sign-in")
        print(f"It signs in once, and ends {made.expires_at:%Y-%m-%d %H:%M} UTC.")


def _hours(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 24:
        raise argparse.ArgumentTypeError("write a whole number of hours from 1 to 24")
    return int(text)


def _master_key_status(_: argparse.Namespace) -> int:
    with service() as (settings, database):
        status = resealing.report(database, settings.master_keys)
        for line in status.lines():
            print(line)
    return 1 if status.missing else 0


def _reseal(arguments: argparse.Namespace) -> None:
    with service() as (settings, database):
        blobs = store.of(settings.blob_url)
        done = resealing.reseal(database, settings.master_keys, blobs, force=arguments.force)
        print(
            f"{done.resealed} sealed anew under {settings.master_keys.ids[0]}, of"
            f" {len(done.tenants)} tenants; {done.unopened} did not open"
        )
        print("`python -m app.manage master-key status` says which key can be dropped")


def _rotate(_: argparse.Namespace) -> None:
    with service() as (settings, database):
        with database.across_tenants() as session:
            done = signing_keys.rotate(session, settings.master_keys)
        print(f"retired: {done.retired or 'none'}\ncurrent: {done.current}")
        tell_untold(settings, database, done.untold)


def _csr(arguments: argparse.Namespace) -> None:
    subject = {
        name: value for name in signing_certificates.SUBJECT if (value := vars(arguments)[name])
    }
    if not subject.keys() & {"organization", "common_name"}:
        raise SettingError("name the owner: --organization, or --common-name")
    with service() as (settings, database), database.across_tenants() as session:
        key = signing_keys.of_bundles(session, settings.master_keys, arguments.key)
        try:
            print(signing_certificates.request(key, subject).decode(), end="")
        except ValueError as error:
            raise SettingError(f"no certificate has such a subject: {error}") from None


def _part(text: str) -> str:
    if not re.fullmatch(r"[^\x00-\x1f\x7f]{1,200}", text) or not text.strip():
        raise argparse.ArgumentTypeError("a part of a name is one line of 1 to 200 characters")
    return text.strip()


def _reason(text: str) -> str:
    if not re.fullmatch(r"[^\x00-\x1f\x7f]{1,200}", text) or not text.strip():
        raise argparse.ArgumentTypeError("a reason is one line of 1 to 200 characters")
    return text.strip()


def _moment(text: str) -> datetime:
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    raise argparse.ArgumentTypeError("write a moment as 2026-01-31T12:00:00Z")


def _revoke(arguments: argparse.Namespace) -> None:
    require_yes(
        arguments,
        "of all that this key signed only what a timestamp or a quorum of witnesses had seen by"
        " then is to verify",
    )
    key_id, reason = arguments.key, arguments.reason
    with service() as (settings, database):
        with database.across_tenants() as session:
            done = signing_keys.revoke(
                session, settings.master_keys, key_id, reason, arguments.since
            )
        print(f"revoked: {key_id}" + (f"\ncurrent: {done.current}" if done.current else ""))
        tell_untold(settings, database, done.untold)


def _list(_: argparse.Namespace) -> None:
    with service() as (_settings, database), database.across_tenants() as session:
        for key in signing_keys.rows(session):
            state = "current" if key.retired_at is None else f"retired {key.retired_at:%Y-%m-%d}"
            if key.revoked_at is not None:
                state = f"revoked {key.revoked_at:%Y-%m-%d}: {key.revocation_reason}"
            print(f"{key.key_id}  {key.purpose:6}  {key.created_at:%Y-%m-%d}  {state}")
