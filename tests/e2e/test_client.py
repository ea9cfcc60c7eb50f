"""The client against a whole service: installed from it, pushing through restarts, listening."""

import base64
import json
import signal
import site
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from standardwebhooks.webhooks import Webhook as StandardWebhook

from dev.stack import ROOT
from tests.e2e.harness.misfortune import House
from tests.e2e.harness.stack import PLAIN, Caller
from tests.support.faults import until
from tests.support.programs import frameworks
from tests.support.programs.documents import block
from tests.support.servers.ports import own_port
from tests.support.servers.receivers import Receiver, http_answer

pytestmark = [pytest.mark.stacks, pytest.mark.toolbox]


class Laptop:
    """A machine with the client and a key, and what runs on it."""

    def __init__(self, home: Path, base_url: str, key: str) -> None:
        self.home = home
        self.environ = {
            **PLAIN,
            "SERVICE_BASE_URL": base_url,
            "SERVICE_API_KEY": key,
            "XDG_STATE_HOME": str(home / "state"),
            "PYTHONPATH": str(ROOT / "client"),
            "PYTHONUNBUFFERED": "1",
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return subprocess.run(
            self._command(arguments), env=self.environ, capture_output=True, text=True, check=False
        )

    def json(self, *arguments: str) -> Any:
        """Run the command; return its document."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def running(self, name: str, *arguments: str) -> Iterator["Running"]:
        """Run the command meanwhile."""
        out, err = self.home / f"{name}.out", self.home / f"{name}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                self._command(arguments), env=self.environ, stdout=stdout, stderr=stderr
            )
        try:
            yield Running(process, out, err)
        finally:
            process.kill()
            process.wait()

    @staticmethod
    def _command(arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "record_service", *arguments]


class Running:
    """A run of the command that goes on."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self._out = out
        self._err = err

    @property
    def out(self) -> list[str]:
        return self._out.read_text().splitlines()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def secret(self) -> str:
        """Return the signing secret of a listener, once it is ready."""
        until(lambda: self.err.startswith("ready") and self.err.endswith("\n"))
        return self.err.split()[-1]


@pytest.fixture
def caller(service: House) -> Caller:
    return service.stack.fresh_tenant()


@pytest.fixture
def laptop(service: House, caller: Caller, tmp_path: Path) -> Laptop:
    return Laptop(tmp_path, service.stack.base_url, caller.key)


@pytest.mark.parametrize(
    ("page", "said"),
    [("client.md", "\trefund.above-limit\tNo second person\t"), ("sdk.md", "VALID")],
)
def test_a_fresh_machine_installs_it_from_the_service_and_works_as_written(
    service: House, tmp_path: Path, page: str, said: str
) -> None:
    machine = tmp_path / "machine"
    venv.create(machine, with_pip=True)
    # click and httpx2 are found here, for no test asks the network.
    (folder,) = (machine / "lib").glob("python*/site-packages")
    (folder / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    script = block(f"docs/{page}", "sh", "requirement.txt")
    if page == "sdk.md":
        for name in ("first.py", "agent.py", "waits.py"):
            (tmp_path / name).write_text(block("docs/sdk.md", "python", f"# {name}\n"))
        script += "test $(python agent.py) = 0\n"
        script += "test $(python waits.py | grep -c 'refund.above-limit Order 4711') = 2\n"
    script = script.replace(". .data/client.env", f". {service.stack.client_env}")

    done = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=tmp_path,
        env={
            **PLAIN,
            "PATH": f"{machine / 'bin'}:{PLAIN['PATH']}",
            "XDG_STATE_HOME": str(tmp_path / "state"),
            # What somebody else offers under the name, newer than ours.
            "PIP_INDEX_URL": frameworks.offered(tmp_path / "index").as_uri(),
            "PIP_FIND_LINKS": str(tmp_path / "index" / frameworks.CLIENT),
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert not (folder / "foreign.py").exists()
    assert "\nVALID\n" in done.stdout
    assert said in done.stdout.splitlines()[-1]


def test_evidence_is_held_against_the_keys_that_were_kept(caller: Caller, laptop: Laptop) -> None:
    file = laptop.home / "refund.json"
    file.write_text("{}")
    session = caller.session()
    push = ["record", "push", "--session", session, str(file)]
    record = laptop.run(*push).stdout.split()[-1]
    keys, others, pack = (str(laptop.home / name) for name in ("keys", "others", "pack.zip"))
    published = caller.get("/.well-known/jwks.json")
    Path(keys).write_text(json.dumps(published))
    for each in published["keys"]:
        another = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
        each["x"] = base64.urlsafe_b64encode(another).decode().rstrip("=")
    Path(others).write_text(json.dumps(published))
    evidence = ["evidence", record, "-o", pack, "--verify", "--key"]

    assert laptop.json(*evidence, keys)["valid"] is True
    assert laptop.run("session", "complete", session).returncode == 0
    whole = ["sessions", "evidence", session, "-o", str(laptop.home / "session.zip"), "--verify"]
    proven = laptop.run(*whole, "--key", keys)
    assert (proven.returncode, proven.stdout.splitlines()[-1]) == (0, "VALID"), proven
    refused = laptop.run(*evidence, others)
    assert (refused.returncode, "INVALID" in refused.stdout) == (1, True), refused


def test_a_period_is_exported_though_workers_are_killed_and_verified(
    service: House, caller: Caller, laptop: Laptop
) -> None:
    files = [laptop.home / f"of-period-{number}.json" for number in range(30)]
    for number, file in enumerate(files):
        file.write_text(json.dumps({"number": number}))
    session = caller.session()
    push = ["record", "push", "--session", session, *map(str, files)]
    assert laptop.run(*push).returncode == 0
    keys, period_file = (str(laptop.home / name) for name in ("keys", "export.ndjson"))
    Path(keys).write_text(json.dumps(caller.get("/.well-known/jwks.json")))
    # Files go several at a time: the last one told need not be the newest.
    (record,) = caller.get(f"/v1/records?session_id={session}&limit=1")["data"]
    period = ["--since", "2026-01-01T00:00:00Z", "--until", record["created_at"]]

    export = laptop.json("exports", "create", *period)
    service.kill_all("worker")
    taken = laptop.json(
        "exports", "download", export["id"], "-o", period_file, "--verify", "--key", keys
    )

    assert taken["valid"] is True
    assert laptop.json("exports", "show", export["id"])["sha256"] == taken["sha256"]
    listed = [json.loads(line) for line in Path(period_file).read_text().splitlines()]
    assert sum(each["type"] == "record" for each in listed) >= len(files) - 1
    assert [each["id"] for each in laptop.json("exports", "list")["data"]] == [export["id"]]
    assert laptop.run("exports", "delete", export["id"], "--yes").returncode == 0


def test_files_pushed_while_service_and_client_are_killed_are_there_once(
    service: House, caller: Caller, laptop: Laptop
) -> None:
    files = [laptop.home / f"{number}.json" for number in range(400)]
    for number, file in enumerate(files):
        file.write_text(json.dumps({"number": number}))
    session = caller.session()
    push = ["record", "push", "--session", session, *map(str, files)]

    with laptop.running("first", *push) as first:
        until(lambda: len(first.out) >= 50)
        service.kill_all("web")
        until(lambda: len(first.out) >= 150)
        first.process.kill()
    with laptop.running("second", *push) as second:
        until(lambda: len(second.out) >= 250)
        service.kill_all("web")
        assert second.process.wait() == 0, second.err
    again = laptop.run(*push)

    assert (again.returncode, again.stderr) == (0, "")
    rows = laptop.json("records", "list", "--session", session, "--all")["data"]
    assert Counter(row["title"] for row in rows) == Counter(file.name for file in files)


def test_a_listener_forwards_what_it_missed_and_nothing_twice(
    caller: Caller, laptop: Laptop
) -> None:
    session = caller.session()
    port = own_port()
    listen = ["webhooks", "listen", "--forward-to", f"http://127.0.0.1:{port}/hook"]
    with laptop.running("first", *listen) as first:
        secret = first.secret()
        # Nobody listens yet: the event waits for the receiver.
        expected = [found["id"] for found in caller.findings(session, 3)]
        until(lambda: "does not answer" in first.err)
        with Receiver(http_answer(204), port=port) as receiver:
            until(lambda: len(first.out) == 3)
            first.process.kill()
            first.process.wait()
            expected += [found["id"] for found in caller.findings(session, 3)]
            with laptop.running("second", *listen) as second:
                assert second.secret() == secret
                until(lambda: len(second.out) == 3)
                assert laptop.run(*listen).returncode == 2, "two listeners at once"
                expected += [found["id"] for found in caller.findings(session, 1)]
                until(lambda: len(second.out) == 4)
                second.process.terminate()
                assert second.process.wait() == 130
            verified = [
                StandardWebhook(secret).verify(each.body, dict(each.headers))
                for each in receiver.requests
            ]
    assert [each["data"]["id"] for each in verified] == expected
    kept = list((laptop.home / "state" / "record-service").iterdir())
    assert {file.stat().st_mode & 0o777 for file in kept} == {0o600}


def test_findings_are_followed_as_they_come(caller: Caller, laptop: Laptop) -> None:
    session = caller.session()
    caller.findings(session, 2)
    with laptop.running("tail", "findings", "tail", "-f", "--json") as tail:
        until(lambda: len(tail.out) == 2)
        caller.findings(session, 2)
        until(lambda: len(tail.out) == 4)
        tail.process.send_signal(signal.SIGINT)
        assert tail.process.wait() == 130
    titles = [json.loads(line)["title"] for line in tail.out]
    assert titles == ["finding 1", "finding 2"] * 2


def test_what_failed_is_grouped_sent_again_and_followed_to_its_end(
    caller: Caller, laptop: Laptop
) -> None:
    status = [404]
    with Receiver(lambda _: http_answer(status[0])) as receiver:
        hook = caller.webhook(receiver, event_types=["finding.created"])
        caller.findings(caller.session(), 3)
        hook.settled()
        (group,) = laptop.json("deliveries", "groups")["data"]
        assert (group["count"], group["status_code"]) == (3, 404)
        replay = ["deliveries", "replay", "--group", group["group"], "--watch"]

        refused = laptop.run(*replay, "--canary", "1")
        assert (refused.returncode, "cancelled" in refused.stdout) == (1, True), refused
        # The canary's own delivery is tried again and arrives.
        status[0] = 200
        hook.settled()
        (group,) = laptop.json("deliveries", "groups")["data"]
        replay[3] = group["group"]
        assert laptop.json(*replay[:-1], "--dry-run")["count"] == 2
        sent = laptop.run(*replay)
        assert (sent.returncode, "succeeded 2" in sent.stdout) == (0, True), sent
        assert laptop.json("deliveries", "groups")["data"] == []
        # It takes whatever comes, forged or not.
        checked = laptop.run("webhooks", "check", hook.id, "--watch")
        assert (checked.returncode, "tampered\tFAILED" in checked.stdout) == (1, True), checked
