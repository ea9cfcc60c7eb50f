"""One step of a period export's job: the state that the cursor holds, and what the step wrote."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from app import ids
from app.core.blobs.store import Stowed, cut
from app.core.exports import parts
from app.core.exports.parts import Part
from app.core.exports.reading import Period
from app.core.jobs.steps import Failed, Step
from app.evidence.period_export import Draft
from app.models import Export

State = dict[str, Any]
BEGIN: State = {"phase": "settling"}

_A_MOMENT = timedelta(seconds=1)


@dataclass(frozen=True)
class Written:
    """What a step wrote, to be stored with its cursor."""

    step: Step | Failed
    parts: Sequence[Part] = ()
    stowed: Sequence[Stowed] = ()
    restart: bool = False
    signed: tuple[int, bytes, str, bytes] | None = None
    digest: bytes | None = None


class Turn:
    """One step of an export: its row, and the state that the step moves on."""

    def __init__(self, export: Export, state: State) -> None:
        self.export = export
        self.state = dict(state)
        self.tenant_id = export.tenant_id
        self.place = (export.tenant_id, export.id)
        self.period = Period(export.tenant_id, export.since, export.until, export.agent_id)

    def progress(self, phase: str) -> dict[str, Any]:
        """Return what is shown of the job."""
        return {
            "export_id": ids.text("exp", self.export.id),
            "phase": phase,
            "records": self.state.get("draft", {}).get("totals", {}).get("records", 0),
            "total": self.state.get("records"),
            "bytes": self.state.get("bytes", 0),
        }

    def go(self, phase: str, wait: timedelta = timedelta(0), **more: Any) -> Written:
        """Go on in a phase."""
        self.state.update(phase=phase, **more)
        return Written(Step(json.dumps(self.state), self.progress(phase), wait))

    def wait(self, **more: Any) -> Written:
        """Come back to the same phase in a second."""
        return self.go(self.state["phase"], _A_MOMENT, **more)

    def restart(self, **kept: Any) -> Written:
        """Begin anew, without what was written."""
        self.state = {**BEGIN, **kept}
        step = Step(json.dumps(self.state), self.progress("settling"), _A_MOMENT)
        return Written(step, restart=True)

    def write(
        self,
        phase: str,
        draft: Draft,
        lines: Sequence[bytes],
        *,
        signed: tuple[int, bytes, str, bytes] | None = None,
        **more: Any,
    ) -> Written:
        """Go on in a phase behind these lines."""
        made = []
        for part in cut(lines, parts.PART_BYTES):
            made.append(Part(self.state["bytes"], part))
            self.state["bytes"] += len(part)
        gone = self.go(phase, draft=draft.dump(), **more)
        return Written(gone.step, made, signed=signed)
