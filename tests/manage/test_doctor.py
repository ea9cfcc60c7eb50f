"""`python -m app.manage doctor` as an operator types it: its lines, its JSON, its exit status."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from app import migrations
from app.core.health.parts import Part, State, failed, ok
from app.manage import commands
from app.manage.doctor import command
from app.manage.doctor.context import Context
from app.settings import Settings
from dev.stack import ROOT
from tests.support.database.doctoring import Installation
from tests.support.secrets import MASTER_KEYS_SETTING

Doctor = Callable[..., tuple[int, str]]
SECRETS = {
    "DATABASE_URL": "postgresql://role:the-first-secret@127.0.0.1:1/records",
    "REDIS_URL": "redis://:the-second-secret@127.0.0.1:1/0",
    "SMTP_URL": "smtp://user:the-third-secret@127.0.0.1:1",
    "MAIL_FROM": "records@example.com",
    "METRICS_TOKEN": "the-fourth-secret",
    "BASE_URL": "https://records.test",
    "MASTER_KEYS": MASTER_KEYS_SETTING,
}


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Return what runs the command in an environment; it answers exit status and output."""

    def run(environ: Mapping[str, str], *arguments: str) -> tuple[int, str]:
        for each in fields(Settings):
            if each.metadata:
                monkeypatch.delenv(each.metadata["name"], raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        status = commands.main(["doctor", *arguments])
        said = capsys.readouterr()
        assert said.err == ""
        return status, said.out

    return run


def test_what_fails_is_told_with_a_command_and_exit_status_1(doctor: Doctor) -> None:
    status, said = doctor(SECRETS)
    assert status == 1
    assert re.search(
        r"^FAIL  database: PostgreSQL at 127\.0\.0\.1:1/records .+ → .+$", said, re.MULTILINE
    )
    assert "skip  roles: not checked: the database does not answer\n" in said
    assert re.search(r"^\d+ ok, \d+ warning, \d+ failed, \d+ not checked$", said, re.MULTILINE)
    assert "-secret" not in said
    assert MASTER_KEYS_SETTING not in said


def test_programs_read_the_same_as_json(doctor: Doctor) -> None:
    status, said = doctor(SECRETS, "--json")
    assert "-secret" not in said
    assert MASTER_KEYS_SETTING not in said
    answer = json.loads(said)
    assert (status, answer["status"]) == (1, "failed")
    found = {each["check"]: each for each in answer["findings"]}
    assert found["roles"] == {
        "check": "roles",
        "status": "not_checked",
        "message": "not checked: the database does not answer",
        "mend": None,
        "see": None,
    }
    assert found["redis"]["status"] == "failed"
    assert found["redis"]["see"] == "docs/operations.md#readyz-says-degraded"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MASTER_KEYS", ""),
        ("BASE_URL", "nowhere"),
        ("DATABASE_URL", "postgresql://role:the-first-secret@host:port/records"),
        ("DATABASE_URL", "postgresql://role:the-first-secret@host:5432:5433/records"),
    ],
)
def test_settings_that_cannot_be_read_are_exit_status_2(
    doctor: Doctor, name: str, value: str
) -> None:
    status, said = doctor({**SECRETS, name: value})
    assert status == 2
    (line, _) = said.splitlines()
    assert line.startswith(f"FAIL  settings: {name} is ")
    assert "secret" not in line


def production(here: Installation, **settings: Any) -> set[str]:
    """Return the settings that the doctor warns of, of an installation that has all but these."""
    good = {
        "base_url": "https://records.test",
        "trusted_proxies": (ip_network("10.0.0.0/8"),),
        "metrics_token": "set",
        "webhook_allowed_networks": (),
        "log_head_url": "s3://bucket/head",
        "root_admin_key": None,
    }
    here.change(**good | settings)
    found = here.found("settings")["settings"]
    return {each.text.split()[0] for each in found if each.state is not State.OK}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"base_url": "http://records.test"}, "BASE_URL"),
        ({"trusted_proxies": ()}, "TRUSTED_PROXIES"),
        ({"metrics_token": None}, "METRICS_TOKEN"),
        ({"webhook_allowed_networks": (ip_network("10.0.0.0/8"),)}, "WEBHOOK_ALLOWED_NETWORKS"),
        ({"log_head_url": None}, "LOG_HEAD_URL"),
        ({"root_admin_key": "a-key"}, "ROOT_ADMIN_KEY"),
        ({"redis_tls_verify": False}, "REDIS_TLS_VERIFY"),
    ],
)
def test_what_production_needs_is_named(
    here: Installation, settings: dict[str, Any], named: str
) -> None:
    assert production(here, **settings) == {named}


def test_a_head_that_ends_with_its_container_fails(here: Installation) -> None:
    if Path("/dev/shm").is_dir():
        assert production(here, log_head_url="file:///dev/shm/log-head") == {"LOG_HEAD_URL"}
    here.environ = {"DYNO": "web.1"}
    assert production(here, log_head_url="file:///app/log-head") == {"LOG_HEAD_URL"}
    assert "s3://bucket/key" in here.failing("settings")
    assert production(here, base_url="http://127.0.0.1:8000", log_head_url=None) == set()


def test_digests_without_a_mail_server_fail(here: Installation) -> None:
    here.change(base_url="https://records.test", smtp_url=None)
    assert here.states("mail") == {State.OK}
    here.run(
        "INSERT INTO tenants (id, name, notification_email, digest_series)"
        " VALUES (gen_random_uuid(), 'wants', 'a@example.com', gen_random_uuid())"
    )
    assert "1 tenants want digests" in here.failing("mail")


def a_context(here: Installation) -> Context:
    return Context(here.settings, None, {})  # type: ignore[arg-type]  # asked by no check


def test_a_check_that_fails_itself_hides_no_other(here: Installation) -> None:
    def broken(_: Context) -> Iterator[Part]:
        yield ok("the first half")
        raise KeyError("a-secret")

    whole = ok("well")
    found = command.run(a_context(here), {"broken": broken, "whole": lambda _: [whole]})
    assert [(each.name, each.state, each.text) for each in found] == [
        ("broken", State.OK, "the first half"),
        ("broken", State.FAILED, "the check itself failed (KeyError)"),
        ("whole", State.OK, "well"),
    ]


def test_a_check_that_hangs_is_given_up(here: Installation) -> None:
    ends = threading.Event()

    def hanging(_: Context) -> list[Part]:
        ends.wait()
        return []

    try:
        (found,) = command.run(a_context(here), {"hanging": hanging}, 0.05)
    finally:
        ends.set()
    assert found.state is State.FAILED
    assert "no answer within 0.05 s" in found.text


def test_a_driver_s_words_steer_no_terminal() -> None:
    first, _ = command.lines([failed("\x1b[2Jcleared\nFAIL", "mend it")])
    assert first == "FAIL  :  [2Jcleared FAIL → mend it"


def test_every_section_that_a_finding_names_exists() -> None:
    named = {
        see
        for folder in ("app/manage/doctor", "app/core/health")
        for source in (ROOT / folder).rglob("*.py")
        for see in re.findall(r'"((?:[a-z]+\.md)?#[a-z0-9-]+)"', source.read_text("utf-8"))
    }
    assert len(named) > 10
    for see in named:
        page, _, anchor = see.partition("#")
        text = (ROOT / "docs" / (page or "operations.md")).read_text("utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert anchor in {
            re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings
        }


def test_a_service_that_is_well_ends_with_0(healthy: Installation) -> None:
    parts = [each for found in healthy.found().values() for each in found]
    bad = [each for each in parts if each.state is not State.OK]
    assert [each.text for each in bad] == ["not checked: no webhook is enabled"]
    assert command.exit_status(parts) == 0
    assert list(command.lines(parts))[-1].endswith(" ok, 0 warning, 0 failed, 1 not checked")


def test_nothing_is_written_but_the_row_that_proves_a_write(healthy: Installation) -> None:
    rights = "INSERT, UPDATE, DELETE"
    healthy.run(f"REVOKE {rights} ON ALL TABLES IN SCHEMA public FROM {healthy.role}")
    healthy.run(f"GRANT UPDATE ON master_keys TO {healthy.role}")
    try:
        assert {name for name, found in healthy.found().items() if _fails(found)} == {"roles"}
    finally:
        migrations.migrate(
            healthy.settings.database_admin_url, app_url=healthy.settings.database_url
        )


def _fails(found: Sequence[Part]) -> bool:
    return any(each.state is State.FAILED for each in found)
