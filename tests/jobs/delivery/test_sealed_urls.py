"""Webhooks' URLs rest sealed: a tick seals those of the release before, and they are sent to."""

import dataclasses
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from app import heartbeats
from app.core.webhooks import webhook_targets
from jobs.actors import ticks
from tests.support.servers.receivers import OK, Receiver
from tests.support.workers.worlds import World

PATH = "/services/T0/B0/p4th-t0k3n?key=qu3ry-t0k3n"
HEADERS = {"Authorization": "Bearer of-the-receiver"}
Plain = Callable[[str], UUID]
PLAIN = "UPDATE webhooks SET url = :url, sealed_target = NULL WHERE id = :id"


@pytest.fixture
def plain(world: World) -> Plain:
    """Have a webhook as the release before stored it."""

    def make(url: str) -> UUID:
        webhook = world.webhook(url)
        world.run(PLAIN, url=url, id=webhook)
        return webhook

    return make


def stored(world: World, webhook: UUID) -> Any:
    (row,) = world.rows("SELECT url, sealed_target FROM webhooks WHERE id = :id", id=webhook)
    return row


def test_a_url_that_the_release_before_stored_is_sent_to_and_then_sealed(
    world: World, plain: Plain
) -> None:
    with Receiver(lambda _: OK) as receiver:
        webhook = plain(receiver.url(PATH))
        world.emit()
        world.turn(webhook)
        with world.database.across_tenants() as session:
            assert webhook_targets.seal_plain(session, world.settings.master_keys) == 1
        with world.database.across_tenants() as session:
            assert webhook_targets.seal_plain(session, world.settings.master_keys) == 0
        row = stored(world, webhook)
        world.emit()
        world.turn(webhook)

    assert row["url"] == receiver.url("/***#")
    assert b"t0k3n" not in bytes(row["sealed_target"])
    assert [request.path for request in receiver.requests] == [PATH, PATH]


def test_a_url_that_the_release_before_sets_beside_a_sealed_one_is_the_webhook_s(
    world: World,
) -> None:
    with Receiver(lambda _: OK) as receiver:
        webhook = world.webhook(receiver.url("/before"), headers=HEADERS)
        world.run("UPDATE webhooks SET url = :url WHERE id = :id", url=receiver.url(), id=webhook)
        world.emit()
        world.turn(webhook)
        with world.database.across_tenants() as session:
            webhook_targets.seal_plain(session, world.settings.master_keys)
        world.emit()
        world.turn(webhook)

    assert [request.path for request in receiver.requests] == ["/hook", "/hook"]
    sent = {request.headers["authorization"] for request in receiver.requests}
    assert sent == {HEADERS["Authorization"]}


def test_nothing_is_sealed_while_a_process_of_the_release_before_runs(
    open_world: Callable[..., World], own_valkey: Any
) -> None:
    world = open_world(redis_url=own_valkey.url)
    webhook = world.webhook("http://127.0.0.1:9/")
    world.run(PLAIN, url="http://127.0.0.1:9/t0k3n", id=webhook)
    ours = heartbeats.this_process("worker")
    old = dataclasses.replace(ours, role="web", pid=1, seals_targets=None)
    heartbeats.report(own_valkey.client, ours)
    heartbeats.report(own_valkey.client, old)

    ticks.seal_webhooks(world.runtime)
    assert stored(world, webhook)["url"] == "http://127.0.0.1:9/t0k3n"

    own_valkey.client.delete("process:web:" + f"{old.host}:{old.pid}")
    ticks.seal_webhooks(world.runtime)
    assert stored(world, webhook)["url"] == "http://127.0.0.1:9/***#"


def test_without_redis_nobody_knows_what_runs_and_nothing_is_sealed(
    world: World, plain: Plain
) -> None:
    webhook = plain("http://127.0.0.1:9/t0k3n")
    ticks.seal_webhooks(dataclasses.replace(world.runtime, bell=type(world.runtime.bell)(None)))
    assert stored(world, webhook)["sealed_target"] is None


def test_a_worker_of_the_release_before_sends_to_no_sealed_url(world: World) -> None:
    webhook = world.webhook("http://127.0.0.1:9/t0k3n")
    answer = world.runtime.outbound.send(stored(world, webhook)["url"], b"{}", {})
    assert (answer.status, answer.failure) == (None, "bad_url")
