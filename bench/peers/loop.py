"""The bare loop: one process that posts the same payload, with a `requests` Session, and no more.

`python -m bench.peers.loop URL COUNT` reads the payload from standard input, says `ready`, and
begins when it is told to. It says `done`, and ends when it is told to.
"""

import sys

import requests


def main() -> None:
    """Post COUNT times to URL."""
    url, count = sys.argv[1], int(sys.argv[2])
    payload = sys.stdin.buffer.readline()
    with requests.Session() as session:
        print("ready", flush=True)
        sys.stdin.buffer.readline()
        for _ in range(count):
            session.post(
                url, payload, headers={"Content-Type": "application/json"}, timeout=15
            ).raise_for_status()
        print("done", flush=True)
        sys.stdin.buffer.readline()


if __name__ == "__main__":
    main()
