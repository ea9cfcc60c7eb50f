"""Which spans make a record: those of one local root, so far as they are here.

A local root is a span without a parent, or whose parent is in another process. A span belongs to
the nearest one above it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from app.evidence.spans.span import Span
from app.lib.canonical_json import JSON

MOST_BYTES = 6 * 1024 * 1024
"""The most bytes of spans in one record; what is above becomes a supplement."""

MOST_SPANS = 20_000


class Staged(NamedTuple):
    """A staged span: its resource's attributes, their bytes, and how many bytes it has."""

    span: Span
    resource: dict[str, JSON]
    resource_key: bytes
    size: int


@dataclass
class Run:
    """Spans of one record, the root first and then by start. Incomplete: the root never came."""

    spans: list[Staged] = field(default_factory=list)
    incomplete: bool = False
    supplement: bool = False


class Before(NamedTuple):
    """What was assembled of this trace before: its spans' ids, and whether a record was made."""

    spans: Collection[str] = frozenset()
    recorded: bool = False
    incomplete: bool = False


def assemble(staged: Sequence[Staged], before: Before, *, patient: bool) -> list[Run]:
    """Return the runs that are ready; spans that still wait for their root are in none.

    `patient`: they have waited long enough, and make a record without it. After a record without
    its root all that follows, the root too, supplements it.
    """
    by_id = {each.span.span_id: each for each in staged}
    tops = _tops(by_id)
    roots: dict[str, Run] = {}
    later, orphans = Run(supplement=True), Run(incomplete=not before.recorded)
    orphans.supplement = before.recorded
    left = []
    for each in staged:
        top = tops[each.span.span_id]
        if top.is_local_root and top.ended and not (before.recorded and before.incomplete):
            roots.setdefault(top.span_id, Run()).spans.append(each)
        elif before.recorded and (before.incomplete or top.parent_id in before.spans):
            later.spans.append(each)
        else:
            left.append(each)
    homes = {
        root.resource_key: roots[root.span.span_id]
        for root in (by_id[root_id] for root_id in roots)
        if not root.span.parent_id
    }
    for each in left:
        # Its parent was lost, or comes late. Of a root's own process no other root is to come.
        home = homes.get(each.resource_key) or (
            next(iter(roots.values()), None) if patient else None
        )
        if home is not None:
            home.spans.append(each)
        elif patient:
            orphans.spans.append(each)
    runs = [_in_order(run, first) for first, run in roots.items()]
    runs += [_in_order(run, None) for run in (later, orphans) if run.spans]
    return [piece for run in runs for piece in _pieces(run)]


def _tops(by_id: dict[str, Staged]) -> dict[str, Span]:
    """Return the top of each span: the nearest local root above it, or the last one that is here.

    Each span is passed once, however deep they lie under each other.
    """
    tops: dict[str, Span] = {}
    for each in by_id.values():
        span = each.span
        way: dict[str, None] = {}
        while span.span_id not in tops and span.span_id not in way:
            way[span.span_id] = None
            above = by_id.get(span.parent_id)
            if above is None or (span.is_local_root and span.ended):
                break
            span = above.span
        tops.update(dict.fromkeys(way, tops.get(span.span_id, span)))
    return tops


def _in_order(run: Run, first: str | None) -> Run:
    run.spans.sort(key=lambda each: (each.span.span_id != first, each.span.started))
    return run


def _pieces(run: Run) -> Iterable[Run]:
    """Cut a run that is too large for one record: all but the first piece are supplements."""
    piece, size = Run(incomplete=run.incomplete, supplement=run.supplement), 0
    for each in run.spans:
        if piece.spans and (size + each.size > MOST_BYTES or len(piece.spans) >= MOST_SPANS):
            yield piece
            piece, size = Run(supplement=True), 0
        piece.spans.append(each)
        size += each.size
    yield piece
