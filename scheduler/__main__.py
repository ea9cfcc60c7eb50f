"""`python -m scheduler` runs the clock; `python -m scheduler now NAME` rings one entry at once."""

import sys
from collections.abc import Callable

from app.lib import process

with process.importing():
    import redis

    from app import heartbeats, logs, queue
    from app.lib.stores import reason
    from app.settings import SettingError, load
    from scheduler.clock import TIMEOUT_SECONDS, Clock
    from scheduler.timetable import TIMETABLE

_DONE, _FAILED, _MISUSED = 0, 1, 2


def main(arguments: list[str]) -> int:
    """Run a command and return its exit code: 1 for a failure, 2 for wrong usage."""
    match arguments:
        case []:
            return _with_redis(_run)
        case ["now", name] if name in TIMETABLE:
            return _with_redis(lambda client: _ring_now(client, name))
        case ["now", name]:
            return _say(f"no entry {name!r}; there are: {', '.join(sorted(TIMETABLE))}", _MISUSED)
        case _:
            return _say("usage: python -m scheduler [now NAME]", _MISUSED)


def _run(client: redis.Redis) -> int:
    Clock(client, TIMETABLE).run()
    return _DONE


def _ring_now(client: redis.Redis, name: str) -> int:
    """Ring an entry now, and leave its next time as it is."""
    with client.pipeline(transaction=True) as pipe:
        queue.push(pipe, name, [()])
        queue.wake(pipe, [name])
        pipe.execute()
    waits = (
        "" if heartbeats.presence(client)["worker"] else "; no worker is up, so it waits for one"
    )
    print(f"rang {name}: actor {name}, queue {queue.ACTORS[name]}{waits}")
    return _DONE


def _with_redis(command: Callable[[redis.Redis], int]) -> int:
    try:
        settings = load()
    except SettingError as error:
        return _say(str(error), _FAILED)
    if settings.redis_url is None:
        return _say("REDIS_URL is not set: the clock rings actors through Redis.", _FAILED)
    logs.configure(settings)
    try:
        return command(queue.connect(settings.redis_url, TIMEOUT_SECONDS))
    except redis.RedisError as error:
        return _say(f"Redis does not answer: {reason(error)}.", _FAILED)


def _say(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
