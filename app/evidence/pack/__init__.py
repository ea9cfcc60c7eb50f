"""The evidence pack: a ZIP that verifies a record offline, without the service.

`evidence` is chosen, `contents` are its files (with `readme`), `archive` is the
ZIP.
"""

from app.evidence.pack.archive import Archive
from app.evidence.pack.contents import findings_file, verifier_source, write, write_session
from app.evidence.pack.evidence import FURTHER, Evidence, Inconsistent, SessionEvidence

__all__ = [
    "FURTHER",
    "Archive",
    "Evidence",
    "Inconsistent",
    "SessionEvidence",
    "findings_file",
    "verifier_source",
    "write",
    "write_session",
]
