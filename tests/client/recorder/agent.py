"""An agent in a process of its own: `agent.py {"runs": 3, …}`, with a job as JSON.

It writes to its standard output, as a ledger, the title of each record that has ended.
"""

import json
import multiprocessing
import os
import resource
import signal
import sys
from typing import Any

from record_service import Recorder
from record_service.recorder import Record

JOB: dict[str, Any] = json.loads(sys.argv[1])


def say(line: str) -> None:
    """Write a line of the ledger, which outlives this process."""
    os.write(1, f"{line}\n".encode())


def run(recorder: Recorder, first: int, count: int) -> None:
    """Record so many runs."""
    name = JOB.get("name", "run")
    for number in range(first, first + count):
        title = f"{name}-{number}"
        before = recorder.stats()
        with recorder.session("chat") as session, session.record("run", title) as record:
            with record.step("work", inputs={"text": "x" * JOB.get("size", 10)}) as step:
                step.outputs = number
            if number % 10 == 0:
                record.finding("tenth", severity="low", title=title)
        after = recorder.stats()
        is_whole = (before["dropped"], before["owed"]) == (after["dropped"], after["owed"])
        say(title if is_whole else f"dropped {title}")


def in_child(above: Record, number: int) -> None:
    """Record in a child that was forked, in its parent's record too."""
    with above.step(f"in child {number}"), above.step("below"):
        run(RECORDER, 1000 * (number + 1), 10)


if "file_limit" in JOB:
    resource.setrlimit(resource.RLIMIT_FSIZE, (JOB["file_limit"], resource.RLIM_INFINITY))
RECORDER = Recorder(**JOB["recorder"])

if __name__ == "__main__":
    if "children" in JOB:
        context = multiprocessing.get_context("fork")
        session = RECORDER.session("chat")
        with session.record("run", "parent") as above, above.step("before"):
            numbers = range(JOB["children"])
            children = [context.Process(target=in_child, args=(above, each)) for each in numbers]
            for each in children:
                each.start()
            for each in children:
                each.join()
            assert [each.exitcode for each in children] == [0] * len(children)
        say("parent")
    run(RECORDER, 0, JOB["runs"])
    if JOB.get("dies"):
        left = RECORDER.session("chat").record("run", "left").start()
        with left.step("done"):
            pass
        left.step("died in it", kind="execute_tool", inputs={"order": 4711}).start()
        os.kill(os.getpid(), signal.SIGKILL)
    if "asks" in JOB:
        # Until the test has seen to it that it goes on.
        sys.stdin.readline()
        assert RECORDER.stats()["dropped"] > 0
        assert RECORDER.flush(60), RECORDER.stats()
        # The disk has room again.
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        run(RECORDER, JOB["runs"], 10)
    is_empty = RECORDER.close(JOB.get("wait", 60.0))
    say(json.dumps({**RECORDER.stats(), "closed": is_empty}))
