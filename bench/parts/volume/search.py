"""Finding records among a million: words as often as they are used, filters, and pages far back."""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from app.core.records import records, search
from app.core.records.search import Search
from app.database import Database
from app.settings import Settings
from bench.datasets import library
from bench.datasets.library import Library
from bench.figures import Figure, Reach, p95
from bench.lab import Lab
from bench.pace import milliseconds
from bench.scale import Scale

_PAGE = 50
_QUICK = Reach(at_most=100)


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Time whole answers: the search, its page, and what each record's GET would say."""
    with lab.migrated() as (settings, database):
        books = library.make(settings, database, scale.records)
        every: list[float] = []
        for kind, asked in _questions(books, scale.samples).items():
            times = [
                milliseconds(partial(_answer, settings, database, books, each)) for each in asked
            ]
            every += times
            yield p95(f"{kind}, {scale.records} records", times, reach=_QUICK)
        yield p95(f"search of any kind, {scale.records} records", every, reach=_QUICK)


def _questions(books: Library, count: int) -> Mapping[str, Sequence[Search]]:
    chance = random.Random(7)

    def words(number: int) -> str:
        return " ".join(books.word(chance) for _ in range(number))

    def agent() -> dict[str, object]:
        return {"agent_id": chance.choice(books.agents)}

    def team() -> list[tuple[str, str]]:
        return [("team", f"t{chance.randrange(20)}")]

    return {
        "newest page": [Search(None, (), {}) for _ in range(count)],
        "by agent": [Search(None, (), agent()) for _ in range(count)],
        "by label": [Search(None, team(), {}) for _ in range(count)],
        "one word": [Search(words(1), (), {}) for _ in range(count)],
        "two words": [Search(words(2), (), {}) for _ in range(count)],
        "three words": [Search(words(3), (), {}) for _ in range(count)],
        "two words and an agent": [Search(words(2), (), agent()) for _ in range(count)],
        "a word and a label": [Search(words(1), team(), {}) for _ in range(count)],
        "a phrase": [Search(f'"{words(2)}"', (), {}) for _ in range(count)],
        "an unused word": [Search(f"none{n}", (), {}) for n in range(count)],
    }


def _answer(settings: Settings, database: Database, books: Library, asked: Search) -> None:
    with database.transaction(books.tenant_id) as session:
        found = search.rows(session, books.caller, settings.master_keys, asked, None, _PAGE)
        records.represent(session, [each.record for each in found])
