"""Rules over the past: a test that stores nothing, and a backfill that makes findings.

Both walk records or sessions by their ids. A short test is answered at once; a longer one and every
backfill are jobs, whose cursor moves with what a step found.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from marshmallow import fields as plain
from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.audit import chain
from app.core.callers import Caller
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Errand, JobFailed, Step
from app.core.rules import matches, rules, subjects
from app.core.rules.evaluators import (
    BULK,
    MOST_ENDED,
    Evaluators,
    Judged,
    Subject,
    Verdict,
)
from app.core.rules.language import RuleText
from app.core.rules.matches import Judge
from app.core.rules.subjects import Seen, Work
from app.database import cursor, database_now
from app.errors import Busy, FieldError, Invalid, NotFound
from app.lib.crypto.sealing import MasterKeys
from app.models import Job
from app.schemas import fields
from app.schemas.schema import AnswerSchema

TEST, BACKFILL = "rule_test", "rule_backfill"
MOST_AT_ONCE = 100
"""Records that a test looks at before it is answered; more are a job."""

LARGEST_TEST = 100_000
MOST_SAMPLES = 100
_A_STEP = 500
_TEST_SECONDS = 5.0
_SLICE_SECONDS = 1.0
_BUSY = timedelta(seconds=0.5)

_RECORDS = """
SELECT created_at AS at, id, false AS is_session FROM records
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND {place}
   AND created_at >= %(since)s AND created_at < %(until)s
"""
_SESSIONS = """
SELECT completed_at AS at, id, true AS is_session FROM sessions
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND status = 'completed' AND {place}
   AND completed_at >= %(since)s AND completed_at < %(until)s
"""
_LARGEST, _SMALLEST = UUID(int=(1 << 128) - 1), UUID(int=0)
_EVER = datetime.fromisoformat("0001-01-01T00:00:00+00:00")


class SampleSchema(AnswerSchema):
    """A match of a test: the record or session, the step's index, and the finding's title."""

    record_id = fields.Id("rec", allow_none=True)
    session_id = fields.Id("ses", allow_none=True)
    step = fields.Count(allow_none=True)
    title = fields.Text(500)


class FailureSchema(AnswerSchema):
    """The first error of a test."""

    detail = fields.Text(1000)
    record_id = fields.Id("rec", allow_none=True)
    session_id = fields.Id("ses", allow_none=True)
    step = fields.Count(allow_none=True)


class ResultSchema(AnswerSchema):
    """The result of a test: counts of records, or of steps as `on` says, and samples."""

    evaluated = fields.Count()
    matched = fields.Count()
    errors = fields.Count()
    matches = fields.Items(fields.Object(SampleSchema), max_items=MOST_SAMPLES)
    ms = plain.Float(metadata={"description": "Milliseconds that a record took, on average."})
    error = fields.Object(FailureSchema, allow_none=True)


@dataclass
class Result:
    """What a test found so far; `subjects` is how many records or sessions it looked at.

    It ends with the third evaluation that was ended.
    """

    subjects: int = 0
    evaluated: int = 0
    matched: int = 0
    errors: int = 0
    micros: int = 0
    ended: int = 0
    matches: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None

    def add(self, on: str, judged: Judged, work: Sequence[Work]) -> None:
        """Add the verdicts on these."""
        self.micros += judged.micros
        for each, steps, verdicts in zip(work, judged.steps, judged.verdicts, strict=False):
            if self.ended >= MOST_ENDED:
                # From here on it was left out.
                return
            verdict = verdicts.get(0, _NOTHING)
            self.subjects += 1
            self.evaluated += steps if on == "step" else 1
            self.matched += verdict.matched
            self.errors += verdict.errors
            self.ended += verdict.ended
            about = _about(each)
            if self.error is None and verdict.error is not None:
                self.error = {"detail": verdict.error, **about, "step": verdict.step}
            room = MOST_SAMPLES - len(self.matches)
            self.matches += [
                {**about, "step": match.step, "title": match.title}
                for match in verdict.matches[:room]
            ]

    def answer(self) -> dict[str, Any]:
        """Return it as JSON."""
        ms = round(self.micros / 1000 / max(1, self.subjects), 3)
        names = ("evaluated", "matched", "errors", "matches", "error")
        return {"ms": ms, **{name: getattr(self, name) for name in names}}

    def progress(self) -> dict[str, Any]:
        """Return the progress of its job, from which `resumed` makes it again."""
        return {**vars(self), **self.answer()}

    @classmethod
    def resumed(cls, progress: Mapping[str, Any]) -> "Result":
        """Return what a job's progress says."""
        return cls(**{each.name: progress[each.name] for each in fields_of(cls)})


_NOTHING = Verdict(0, (), 0, None)


@dataclass(frozen=True)
class Wanted:
    """The records or sessions to look at: by ids, or the newest `limit` of a time, `until` not."""

    on: str
    since: datetime | None = None
    until: datetime | None = None
    limit: int = MOST_AT_ONCE
    record_ids: Sequence[UUID] | None = None


def test(
    session: Session, master_keys: MasterKeys, tenant_id: UUID, wanted: Wanted
) -> list[tuple[Work, Seen]]:
    """Return what a short test looks at; raises `NotFound` for a record that is not there."""
    if wanted.record_ids is None:
        work = _select(session, tenant_id, wanted, _LARGEST, wanted.limit, newest=True)
    else:
        work = [Work(_EVER, each, is_session=False) for each in wanted.record_ids]
    seen, left = subjects.read(session, master_keys, tenant_id, work)
    if missing := [each.id for each in work if each.id not in seen and each.id not in left]:
        raise NotFound(f"There is no record with the id {ids.text('rec', missing[0])}.")
    return [(each, seen[each.id]) for each in work if each.id in seen]


def judge(evaluators: Evaluators, text: RuleText, chosen: Sequence[tuple[Work, Seen]]) -> Result:
    """Judge what a test looks at, for five seconds at most, with no transaction open."""
    result = Result()
    judged = evaluators.judge(
        BULK, [text], _subjects([seen for _, seen in chosen]), seconds=_TEST_SECONDS, patience=5.0
    )
    result.add(text.on, judged, [work for work, _ in chosen])
    return result


def start_test(session: Session, tenant_id: UUID, text: RuleText, wanted: Wanted) -> Job:
    """Enqueue a longer test."""
    args = {"rule": text._asdict(), "limit": wanted.limit, **_range(session, wanted)}
    return job_queue.enqueue(session, tenant_id, kind=TEST, args=args, progress=Result().progress())


def start_backfill(
    session: Session, caller: Caller, rule_id: UUID | None, wanted: Mapping[str, Any]
) -> Job:
    """Enqueue a backfill by the rule's version of now; raises `NotFound` and `Invalid`.

    `wanted` has `since` and `until`, and may have `rate` and `dry_run`.
    """
    watched = rules.find(session, caller.tenant_id, rule_id)
    text = watched.text
    if wanted["since"] >= wanted["until"]:
        raise Invalid(FieldError("/until", "Send a time after `since`."))
    if wanted["until"] > watched.now:
        raise Invalid(FieldError("/until", "A backfill is of the past; the rule judges the rest."))
    args = {
        "rule_id": ids.text("rul", watched.id),
        "version": text.version,
        "rate": wanted.get("rate"),
        "dry_run": bool(wanted.get("dry_run")),
        **_range(session, Wanted(text.subject, wanted["since"], wanted["until"])),
    }
    nothing = {"findings": 0, **Result().progress()}
    job = job_queue.enqueue(session, caller.tenant_id, kind=BACKFILL, args=args, progress=nothing)
    details = {"job_id": ids.text("job", job.id), **args}
    target = ("rule", ids.text("rul", watched.id))
    chain.append_by(session, caller, "rule.backfill", target=target, details=details)
    return job


class Scanner:
    """The steps of both jobs."""

    def __init__(self, evaluators: Evaluators, master_keys: MasterKeys) -> None:
        """Take the services of this process."""
        self._evaluators = evaluators
        self._master_keys = master_keys

    def test(self, session: Session, tenant_id: UUID, job: Job) -> Errand[Judged | None] | Step:
        """Look at the next records, newest first."""
        args, progress = job_rows.args_of(job), job_rows.progress_of(job)
        text = RuleText(**args["rule"])
        position = _LARGEST if job.cursor is None else UUID(job.cursor)
        limit = min(_A_STEP, args["limit"] - progress["subjects"])
        work = _select(session, tenant_id, _wanted(text.on, args), position, limit, newest=True)
        return self._errand(session, tenant_id, text, work, progress, position, rate=None)

    def backfill(self, session: Session, tenant_id: UUID, job: Job) -> Errand[Judged | None] | Step:
        """Look at the next records, oldest first, and make findings of what matches."""
        args, progress = job_rows.args_of(job), job_rows.progress_of(job)
        judge = _judge_of(session, tenant_id, args)
        position = _SMALLEST if job.cursor is None else UUID(job.cursor)
        wanted = _wanted(judge.text.on, args)
        rate = args["rate"]
        limit = min(_A_STEP, rate or _A_STEP)
        work = _select(session, tenant_id, wanted, position, limit, newest=False)
        made = None if args["dry_run"] else judge
        return self._errand(
            session, tenant_id, judge.text, work, progress, position, rate=rate, judge=made
        )

    def _errand(
        self,
        session: Session,
        tenant_id: UUID,
        text: RuleText,
        work: Sequence[Work],
        progress: dict[str, Any],
        position: UUID,
        *,
        rate: int | None,
        judge: Judge | None = None,
    ) -> Errand[Judged | None] | Step:
        """Return the errand that judges this work, and goes on behind what was judged of it."""
        if progress["ended"] >= MOST_ENDED:
            raise JobFailed("The rule took too much time or memory three times.")
        if not work:
            return Step(None, progress)
        seen, left = subjects.read(session, self._master_keys, tenant_id, work)
        ready = next((at for at, each in enumerate(work) if each.id in left), len(work))
        present = [each for each in work[:ready] if each.id in seen]

        def talk() -> Judged | None:
            chosen = _subjects([seen[each.id] for each in present])
            ended = [progress["ended"]]
            try:
                return self._evaluators.judge(
                    BULK, [text], chosen, seconds=_SLICE_SECONDS, ended=ended, patience=5.0
                )
            except Busy:
                return None

        def record(session: Session, judged: Judged | None) -> Step:
            if judged is None:
                return Step(str(position), progress, _BUSY)
            done = present[: len(judged.verdicts)]
            result = Result.resumed(progress)
            result.add(text.on, judged, done)
            shown = {**progress, **result.progress()}
            if judge is not None:
                verdicts = list(zip(done, judged.verdicts, strict=True))
                made = matches.commit(session, tenant_id, [judge], verdicts, live=False)
                shown["findings"] = progress["findings"] + made
            last = done[-1].id if len(done) < len(present) else work[ready - 1].id
            wait = timedelta(seconds=len(done) / rate) if rate else timedelta(0)
            return Step(str(last), shown, wait)

        return Errand(talk, record)


def _judge_of(session: Session, tenant_id: UUID, args: Mapping[str, Any]) -> Judge:
    rule_id = ids.read("rul", args["rule_id"])
    text = rules.version(session, tenant_id, rule_id, args["version"])
    seen = RuleText(text.subject, text.condition, text.title, text.detail, text.dedupe)
    return Judge(rule_id, text.version, text.name, text.severity, text.max_per_hour, seen, 0)


def _select(
    session: Session,
    tenant_id: UUID,
    wanted: Wanted,
    position: UUID,
    limit: int,
    *,
    newest: bool,
) -> list[Work]:
    """Return the next records, or sessions that ended, on one side of a position."""
    query = _SESSIONS if wanted.on == "session" else _RECORDS
    place, order = ("id < %(position)s", "DESC") if newest else ("id > %(position)s", "ASC")
    values = {
        "tenant": tenant_id,
        "position": position,
        "since": wanted.since or _EVER,
        "until": wanted.until or database_now(session),
        "limit": max(0, limit),
    }
    text = f"{query.format(place=place)} ORDER BY id {order} LIMIT %(limit)s"
    return cursor(session, class_row(Work)).execute(text.encode(), values).fetchall()


def _range(session: Session, wanted: Wanted) -> dict[str, str | None]:
    until = wanted.until or database_now(session)
    since = None if wanted.since is None else rfc3339(wanted.since)
    return {"since": since, "until": rfc3339(until)}


def _wanted(on: str, args: Mapping[str, Any]) -> Wanted:
    since = args["since"] and datetime.fromisoformat(args["since"])
    return Wanted(on, since, datetime.fromisoformat(args["until"]))


def _subjects(seen: Sequence[Seen]) -> list[Subject]:
    return [Subject(each.facts, each.bundle, [0]) for each in seen]


def _about(work: Work) -> dict[str, str | None]:
    name = ids.text("ses" if work.is_session else "rec", work.id)
    return {
        "record_id": None if work.is_session else name,
        "session_id": name if work.is_session else None,
    }
