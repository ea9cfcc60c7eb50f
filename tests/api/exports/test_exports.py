"""Period exports: ordered, made, downloaded, verified."""

from pathlib import Path

from tests.support.evidence.exporting import Exporter, lines_of, verified


def test_an_export_lists_every_record_of_its_period(exporter: Exporter, tmp_path: Path) -> None:
    exporter.records(2)
    since = exporter.now()
    made = exporter.records(7)
    until = exporter.now()
    exporter.records(2)

    export = exporter.made(since, until)
    file = exporter.file(export)
    lines = lines_of(file)
    found = verified(tmp_path, file)

    print(found.text)
    listed = [line["id"] for line in lines if line["type"] == "record"]
    assert listed == [each["id"] for each in made]
    assert found.code == 0
    assert export["records"] == 7
