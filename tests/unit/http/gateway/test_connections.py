"""Which connections are hung up: those beyond a client's share, then beyond that of all."""

from app.lib.gateway.connections import Awaited, superfluous


def waiting(whose: str, since: list[int], *, answered: bool = False) -> list[Awaited]:
    """Return connections of one client, named by when they began to wait."""
    return [Awaited(answered, float(at), (whose, str(at)), whose) for at in since]


def test_a_client_keeps_the_newest_of_its_share() -> None:
    awaited = waiting("a", [3, 1, 2, 4]) + waiting("b", [0])
    assert superfluous(awaited, 2, 100) == [("a", "1"), ("a", "2")]
    assert superfluous(awaited, 4, 100) == []


def test_many_clients_leave_places_in_all() -> None:
    awaited = [each for at in range(10) for each in waiting(f"client {at}", [at])]
    assert superfluous(awaited, 2, 7) == [(f"client {at}", str(at)) for at in range(3)]


def test_what_one_client_has_too_many_of_spares_the_others() -> None:
    awaited = waiting("loud", list(range(10, 30))) + waiting("quiet", [1])
    hung_up = superfluous(awaited, 4, 5)
    assert len(hung_up) == 16
    assert {host for host, _ in hung_up} == {"loud"}


def test_connections_that_were_answered_outlast_those_that_never_asked() -> None:
    used = waiting("a", [1, 2], answered=True)
    assert superfluous(waiting("a", [3, 4, 5]) + used, 3, 100) == [("a", "3"), ("a", "4")]
