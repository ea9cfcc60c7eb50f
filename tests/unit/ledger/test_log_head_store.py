"""Where the log's head is kept: swapped whole, by one at a time, or not at all."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.core.log import head_store
from app.core.log.head_store import FileHead, HeadStore
from app.core.log.s3_head import S3Head
from app.errors import LogHeadUnavailable
from tests.support.servers import s3


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.Objects]:
    """Serve a bucket, and have obstore's settings name it."""
    with s3.serving() as server:
        for name, value in {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Name a store of each kind."""
    if request.param == "s3":
        request.getfixturevalue("objects")
        return "s3://bucket/folder/head"
    return (tmp_path / "the head").as_uri()


@pytest.fixture
def store(url: str) -> HeadStore:
    """Open it."""
    opened = head_store.opened(url)
    assert opened is not None
    return opened


def test_without_an_address_there_is_no_store() -> None:
    assert head_store.opened(None) is None


def test_a_head_is_kept_and_swapped(store: HeadStore, url: str) -> None:
    assert store.read() is None
    assert store.swap(None, b"one\n")
    assert store.swap(b"one\n", b"two\n")
    again = head_store.opened(url)
    assert again is not None
    assert again.read() == b"two\n"


def test_what_is_not_there_any_more_is_not_swapped(store: HeadStore) -> None:
    assert not store.swap(b"one\n", b"two\n")
    assert store.read() is None
    assert store.swap(None, b"one\n")
    assert not store.swap(None, b"two\n")
    assert not store.swap(b"other\n", b"two\n")
    assert store.read() == b"one\n"


def test_a_swap_that_happened_already_is_a_success(store: HeadStore) -> None:
    assert store.swap(None, b"one\n")
    assert store.swap(None, b"one\n")


def test_of_many_at_once_one_swaps(url: str) -> None:
    def race(number: int) -> bool:
        own = head_store.opened(url)
        assert own is not None
        return own.swap(None, b"%d\n" % number)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, range(8)))
    store = head_store.opened(url)
    assert store is not None
    assert won.count(True) == 1
    assert store.read() == b"%d\n" % won.index(True)


def test_a_file_s_reader_waits_for_its_writer_and_then_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_store, "_PATIENCE_SECONDS", 0.05)
    descriptor = os.open(tmp_path / "head.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(LogHeadUnavailable):
        FileHead(tmp_path / "head").read()
    os.close(descriptor)
    assert FileHead(tmp_path / "head").read() is None


def test_a_folder_that_is_gone_is_said_to_be_out_of_reach(tmp_path: Path) -> None:
    store = FileHead(tmp_path / "gone" / "head")
    with pytest.raises(LogHeadUnavailable):
        store.read()
    with pytest.raises(LogHeadUnavailable):
        store.swap(None, b"one\n")


def test_what_a_killed_writer_left_is_no_head(tmp_path: Path) -> None:
    (tmp_path / "head.new").write_bytes(b"half a he")
    store = FileHead(tmp_path / "head")
    assert store.read() is None
    assert store.swap(None, b"one\n")
    assert store.read() == b"one\n"


def test_an_object_store_that_fails_says_so(objects: s3.Objects) -> None:
    store = S3Head("bucket", "head")
    objects.broken = True
    with pytest.raises(LogHeadUnavailable):
        store.read()
    with pytest.raises(LogHeadUnavailable):
        store.swap(None, b"one\n")


def test_an_answer_lost_behind_a_write_is_found_out_by_the_next_look(objects: s3.Objects) -> None:
    """A repeat of a conditional PUT is refused, for the first one was carried out."""
    store = S3Head("bucket", "head")
    objects.lost_answers = 1
    with contextlib.suppress(LogHeadUnavailable):
        store.swap(None, b"one\n")
    assert store.read() == b"one\n"
    assert store.swap(None, b"one\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lock another user out")
def test_what_root_keeps_the_owner_of_the_folder_can_keep_on(tmp_path: Path) -> None:
    nobody = 65534
    os.chown(tmp_path, nobody, nobody)
    assert FileHead(tmp_path / "head").swap(None, b"one\n")
    assert {file.name: file.stat().st_uid for file in tmp_path.iterdir()} == {
        "head": nobody,
        "head.lock": nobody,
    }
