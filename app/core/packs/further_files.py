"""Further files of a pack: inputs besides bundle and log, which may change after the record.

Each supplier names the state of what it would supply, cheaply: each request for a pack asks. A pack
is made anew when a state is not the one that it was made from.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import NamedTuple

from sqlalchemy.orm import Session

from app import ids
from app.core import findings, signing_keys
from app.core.statements import statements
from app.evidence import statement
from app.evidence.pack import findings_file
from app.models import Record
from app.settings import Settings

MOST_FINDINGS = 8 * 2**20


class Supplier(NamedTuple):
    """Supplies whole groups of `app.evidence.pack.FURTHER`, or nothing.

    `state` names what `files` would return; it opens nothing that is sealed.
    """

    state: Callable[[Session, Record], str]
    files: Callable[[Session, Settings, Record], Mapping[str, bytes]]


def _findings_state(session: Session, record: Record) -> str:
    return findings.state_of_record(session, record.tenant_id, record.id)


def _findings(session: Session, _: Settings, record: Record) -> Mapping[str, bytes]:
    found = findings.of_record(session, record.tenant_id, record.id, MOST_FINDINGS)
    return {"findings.json": findings_file(ids.text("rec", record.id), *found)}


def _session_state(session: Session, record: Record) -> str:
    stored = statements.find(session, record.tenant_id, record.session_id)
    return "" if stored is None else stored.sha256.hex()


def _session(session: Session, _: Settings, record: Record) -> Mapping[str, bytes]:
    place = statements.place_of(session, record)
    if place is None:
        return {}
    stored = place.statement
    files = {
        "session-proof.json": statement.proof(place.index, place.size, place.path),
        "session-statement.json": stored.body,
        "session-statement.sig": stored.signature,
    }
    if stored.key_id != record.key_id:
        files["session-key.pem"] = signing_keys.public_key(session, stored.key_id).pem
    return files


SUPPLIERS = (Supplier(_findings_state, _findings), Supplier(_session_state, _session))


def state(session: Session, record: Record) -> str:
    """Return a digest of the states of all that goes into a pack made now."""
    states = (each.state(session, record).encode() for each in SUPPLIERS)
    return sha256(b"".join(sha256(each).digest() for each in states)).hexdigest()


def files(session: Session, settings: Settings, record: Record) -> dict[str, bytes]:
    """Return the further files of a pack made now, by name."""
    return {
        name: data
        for each in SUPPLIERS
        for name, data in each.files(session, settings, record).items()
    }
