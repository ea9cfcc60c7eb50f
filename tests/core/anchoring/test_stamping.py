"""The newest checkpoint is stamped once, as it is published; an authority that is away."""

import json
import subprocess
from base64 import b64decode
from pathlib import Path

import pytest
import structlog
from rfc3161_client import decode_timestamp_response

from app import ids
from app.core.anchoring.timestamping import Authority, Stamper
from app.core.jobs.steps import Errand, Step
from app.evidence import timestamps, verify
from app.evidence.timestamps import Stamp
from app.ledger.notes import Note
from app.models import NO_TENANT, Job
from dev.tsa import KeyType, TimestampAuthority
from tests.support.evidence.anchoring import Place
from tests.support.servers.receivers import Receiver, Request, http_answer


@pytest.fixture
def place(bare: Place) -> Place:
    """Return a service that has published a checkpoint of three leaves."""
    bare.grow(3)
    return bare


def openssl_agrees(folder: Path, note: bytes, response: bytes, chain: str) -> bool:
    """Ask the program that auditors have."""
    files = {"checkpoint": note, "checkpoint.tsr": response, "tsa-chain.pem": chain.encode()}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    command = ["openssl", "ts", "-verify", "-data", "checkpoint", "-in", "checkpoint.tsr"]
    said = subprocess.run(
        [*command, "-CAfile", "tsa-chain.pem"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    return said.returncode == 0


@pytest.mark.parametrize("key_type", list(KeyType))
def test_the_newest_checkpoint_is_stamped_as_it_is_published(
    place: Place, tmp_path: Path, key_type: KeyType
) -> None:
    with TimestampAuthority(tmp_path / "tsa", key_type) as authority:
        place.stamped_by(authority.url, authority.ca_file)
        place.stamp()
    (row,) = place.stamps()
    last = place.world.published()
    assert len(Note.parse(last.note).signatures) == 1, "the log's own alone is stamped"
    assert row.size == last.checkpoint.size == 3
    assert openssl_agrees(tmp_path, last.note, row.response, row.tsa_chain)
    assert not openssl_agrees(tmp_path, last.note + b"\n", row.response, row.tsa_chain)
    assert place.troubles() == []


@pytest.mark.parametrize("key_type", list(KeyType))
def test_an_answer_that_includes_the_root_is_kept_as_it_came(
    place: Place, tmp_path: Path, key_type: KeyType
) -> None:
    """OpenSSL leaves certificates in another order than DER asks of a set; BER is what is asked."""
    tenant = place.tenant()
    place.anchor()
    place.publish()
    authority = TimestampAuthority(tmp_path / "tsa", key_type, sends_root=True)
    answers: list[bytes] = []

    def answer(request: Request) -> bytes:
        answers.append(authority.reply(request.body))
        return http_answer(200, answers[-1])

    with Receiver(answer) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        place.stamp()
    with pytest.raises(ValueError, match="InvalidSetOrdering"):
        decode_timestamp_response(answers[0])
    assert place.troubles() == []
    (row,) = place.stamps()
    assert row.response == answers[0]
    assert row.tsa_chain == authority.ca_file.read_text()
    note = place.world.published().note
    assert openssl_agrees(tmp_path, note, row.response, row.tsa_chain)
    (anchor,) = place.anchors(tenant)
    assert b64decode(anchor["timestamp"]) == answers[0]


def test_a_grant_with_modifications_is_a_grant(place: Place, authority: TimestampAuthority) -> None:
    """RFC 3161 section 2.4.2: with it comes a token, and that is held to all that was asked."""
    tenant = place.tenant()
    place.anchor()
    place.publish()
    modified = bytes.fromhex("3003020101")

    def answer(request: Request) -> bytes:
        granted, reply = bytes.fromhex("3003020100"), authority.reply(request.body)
        assert reply.count(granted) == 1
        return http_answer(200, reply.replace(granted, modified))

    with Receiver(answer) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        place.stamp()
    assert place.troubles() == []
    (row,) = place.stamps()
    assert modified in row.response, "as it came"
    (anchor,) = place.anchors(tenant)
    assert b64decode(anchor["timestamp"]) == row.response
    assert anchor["tsa_chain"] == authority.ca_file.read_text()
    note = place.world.published().note
    said = verify.check_timestamp(row.response, note, row.tsa_chain.encode(), None)
    assert said == timestamps.gen_time(row.response), "verify.py decides alike"


def test_a_checkpoint_is_stamped_once(place: Place, authority: TimestampAuthority) -> None:
    with Receiver(lambda request: http_answer(200, authority.reply(request.body))) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        place.stamp()
        place.stamp()
        assert len(receiver.requests) == 1
        assert receiver.requests[0].headers["content-type"] == "application/timestamp-query"
        place.grow()
        place.stamp()
        assert [row.size for row in place.stamps()] == [3, 4]
        assert len(place.jobs()) == 1


def test_nothing_is_stamped_without_an_authority_or_of_an_empty_log(
    bare: Place, authority: TimestampAuthority
) -> None:
    with Receiver() as receiver:
        bare.stamped_by(receiver.url(), authority.ca_file)
        bare.stamp()
        assert bare.publish() == 0
        bare.stamp()
        assert receiver.requests == []
    bare.set(tsa_url=None)
    bare.grow()
    bare.stamp()
    assert bare.jobs() == []


def test_who_dies_between_the_answer_and_its_record_is_followed_by_another(
    place: Place, authority: TimestampAuthority
) -> None:
    """Two may even have asked, when the first was only slow: one stamp is kept."""
    with authority:
        place.stamped_by(authority.url, authority.ca_file)
        settings = place.runtime.settings
        stamper = Stamper(place.runtime.authorities, Authority.of(settings))
        args = json.dumps({"generation": 1, "size": place.world.published().checkpoint.size})
        job = Job(tenant_id=NO_TENANT, id=ids.new(), attempts=0, args=args)
        with place.database.across_tenants() as session:
            first, second = (stamper.step(session, NO_TENANT, job) for _ in range(2))
        assert isinstance(first, Errand)
        assert isinstance(second, Errand)
        lost, said = first.talk(), second.talk()
    assert place.stamps() == []
    for errand, answer in ((second, said), (first, lost)):
        with place.database.across_tenants() as session:
            assert isinstance(errand.record(session, answer), Step)
    (row,) = place.stamps()
    assert isinstance(said, Stamp)
    assert row.response == said.response


# Nobody listens on this port, and no ordinary user may.
NOBODY = "http://127.0.0.1:1/"


def test_an_authority_that_is_down_is_asked_again_by_one_job(
    place: Place, authority: TimestampAuthority
) -> None:
    place.stamped_by(NOBODY, authority.ca_file)
    place.stamp()
    for _ in range(5):
        place.retry()
    (job,) = place.jobs()
    assert (job.status, job.attempts) == ("dead", 4)
    place.stamp()
    (job,) = place.jobs()
    assert (job.status, job.attempts) == ("retrying", 1), "the same row, once more"
    place.grow()
    with authority:
        place.stamped_by(authority.url, authority.ca_file)
        place.stamp()
    assert [row.size for row in place.stamps()] == [4], "the newest, and only that"


def test_that_nothing_is_stamped_is_said_since_when_and_once_each_way(
    place: Place, authority: TimestampAuthority
) -> None:
    with structlog.testing.capture_logs() as lines:
        place.stamped_by(NOBODY, authority.ca_file)
        place.stamp()
        place.grow()
        for _ in range(4):
            place.retry()
        place.stamp()
        assert place.troubles() == [], "it is not late yet"
        place.overdue()
        place.stamp()
        (trouble,) = place.troubles()
        with authority:
            place.stamped_by(authority.url, authority.ca_file)
            place.retry()
    assert trouble.since == place.published_at(3), "the first that is not stamped"
    assert place.troubles() == []
    told = [each["event"] for each in lines if "part" in each]
    assert told == ["unanchored", "anchoring_recovered"]


def test_a_trouble_of_an_authority_that_is_not_asked_any_more_is_forgotten(
    place: Place, authority: TimestampAuthority
) -> None:
    with Receiver(http_answer(503)) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        place.stamp()
        place.overdue()
    assert "status 503" in place.troubles()[0].detail
    place.set(tsa_url=None, tsa_ca_file=())
    place.stamp()
    assert place.troubles() == []
    place.retry()
    assert place.jobs()[0].status == "succeeded"


def test_an_authority_behind_a_login_is_asked_with_it_and_nobody_is_told(
    place: Place, authority: TimestampAuthority
) -> None:
    login = "Basic dXNlcjpodW50ZXIy"

    def answer(request: Request) -> bytes:
        if request.headers.get("authorization") != login:
            return http_answer(401)
        return http_answer(200, authority.reply(request.body))

    told = []
    with Receiver(answer) as receiver, structlog.testing.capture_logs() as lines:
        place.stamped_by(receiver.url(), authority.ca_file)
        for wrong in (None, "Basic d3Jvbmc6aHVudGVyMg=="):
            place.set(tsa_authorization=wrong)
            place.stamp()
            place.overdue()
            told += [each.detail for each in place.troubles()]
            assert "401: TSA_AUTHORIZATION is not what it asks for" in told[-1]
        place.set(tsa_authorization=login)
        place.retry()
        assert len(place.stamps()) == 1
        (job,) = place.jobs()
    seen = repr((lines, told, job.error, job.progress, place.runtime.settings))
    assert "dXNlcjpodW50ZXIy" not in seen
    assert "d3Jvbmc6aHVudGVyMg" not in seen
