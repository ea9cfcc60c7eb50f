"""Runs the checks side by side, each in a thread of its own, within one deadline for all."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from app.manage.doctor import findings
from app.manage.doctor.context import Context
from app.manage.doctor.findings import Finding, NotChecked

Check = Callable[[Context], Iterable[Finding]]
Results = Mapping[str, Sequence[Finding]]

# The slowest, a timestamp authority, has 15.
DEADLINE_SECONDS = 20.0


def run(
    context: Context, checks: Mapping[str, Check], seconds: float = DEADLINE_SECONDS
) -> Results:
    """Return what each check found, by its name and in the order of `checks`.

    A check that has no result after `seconds` is reported as failed; its thread is abandoned.
    """
    done: queue.SimpleQueue[tuple[str, list[Finding]]] = queue.SimpleQueue()
    for name, check in checks.items():
        # A daemon: name resolution in a driver of C cannot be interrupted.
        threading.Thread(
            target=lambda name=name, check=check: done.put((name, _found(context, check))),
            name=f"doctor {name}",
            daemon=True,
        ).start()
    ends = time.monotonic() + seconds
    results: dict[str, list[Finding]] = {}
    while len(results) < len(checks):
        try:
            name, found = done.get(timeout=max(ends - time.monotonic(), 0.0))
        except queue.Empty:
            break
        results[name] = found
    return {name: results.get(name) or [_no_answer(seconds)] for name in checks}


def _found(context: Context, check: Check) -> list[Finding]:
    found: list[Finding] = []
    try:
        # Findings from before a store went away are kept.
        found.extend(check(context))
    except NotChecked as why:
        found.append(findings.not_checked(str(why)))
    except Exception as error:  # noqa: BLE001 - one check's fault must not hide the others
        kind = type(error).__name__
        found.append(findings.failed(f"the check itself failed ({kind})", "report this line"))
    return found


def _no_answer(seconds: float) -> Finding:
    return findings.failed(
        f"no answer within {seconds:g} s", "see whether names resolve: `getent hosts HOST`"
    )
