"""`Recorder`: records what an agent does, by a spool on disk and a thread that sends.

In the order of work: `places` and `spool` (files that outlive the process), `guard` (nothing is
raised into the agent), `shapes`, `steps`, `handles` (sessions and records), `recorder`, `runs` and
`delivery` (a chunk becomes requests, each thing once), `sender`.
"""

from __future__ import annotations

from record_service.recorder.handles import Record, Session
from record_service.recorder.recorder import Recorder
from record_service.recorder.steps import Step

__all__ = ["Record", "Recorder", "Session", "Step"]
