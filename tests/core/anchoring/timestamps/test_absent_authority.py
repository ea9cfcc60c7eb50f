"""An authority that is away is asked again by one job, and reported after some tries."""

import structlog

from dev.tsa import TimestampAuthority
from tests.support.evidence.anchoring import Place
from tests.support.servers.receivers import Receiver, Request, http_answer

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
    place.age()
    with structlog.testing.capture_logs() as lines:
        place.stamped_by(NOBODY, authority.ca_file)
        for _ in range(2):
            place.stamp()
            place.retry()
            place.grow()
        (trouble,) = place.troubles()
        with authority:
            place.stamped_by(authority.url, authority.ca_file)
            place.retry()
    assert trouble.since == place.published_at(3), "the first that is not stamped"
    assert place.troubles() == []
    told = [each["event"] for each in lines if "part" in each]
    assert told == ["unanchored", "anchoring_recovered"]


def test_one_failed_try_is_no_trouble_yet(place: Place, authority: TimestampAuthority) -> None:
    place.stamped_by(NOBODY, authority.ca_file)
    with structlog.testing.capture_logs() as lines:
        place.stamp()
        for _ in range(2):
            assert place.troubles() == []
            place.retry()
        assert place.troubles() == []
        assert [each for each in lines if each["event"] == "unanchored"] == []
        place.retry()
    assert [each.part for each in place.troubles()] == ["timestamps"]
    assert [each["log_level"] for each in lines if each["event"] == "unanchored"] == ["error"]


def test_a_trouble_of_an_authority_that_is_not_asked_any_more_is_forgotten(
    place: Place, authority: TimestampAuthority
) -> None:
    place.age()
    with Receiver(http_answer(503)) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        place.stamp()
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

    place.age()
    told = []
    with Receiver(answer) as receiver, structlog.testing.capture_logs() as lines:
        place.stamped_by(receiver.url(), authority.ca_file)
        for wrong in (None, "Basic d3Jvbmc6aHVudGVyMg=="):
            place.set(tsa_authorization=wrong)
            place.stamp()
            place.retry()
            told += [each.detail for each in place.troubles()]
            assert "401: TSA_AUTHORIZATION is not what it asks for" in told[-1]
        place.set(tsa_authorization=login)
        place.retry()
        assert len(place.stamps()) == 1
        (job,) = place.jobs()
    seen = repr((lines, told, job.error, job.progress, place.runtime.settings))
    assert "dXNlcjpodW50ZXIy" not in seen
    assert "d3Jvbmc6aHVudGVyMg" not in seen
