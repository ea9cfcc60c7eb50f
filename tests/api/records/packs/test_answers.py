"""Answers of the pack's route: 202 while it is built, ranges, documentation."""

from hashlib import sha256

import pytest
from flask.testing import FlaskClient

from app.core.packs import store
from app.evidence import pack
from tests.support.callers.making import refused
from tests.support.evidence.packing import AT_ONCE, Packer, files_in, path_of
from tests.support.faults import at_once


def test_until_it_is_built_the_answer_says_how_far_it_is(packer: Packer) -> None:
    record = packer.record()
    answer = packer.ask(record)
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"https://records.test{path_of(record)}"
    assert answer.headers["Retry-After"] == "1"
    assert answer.headers["Preference-Applied"] == "wait=0"
    job = answer.json["job"]
    assert (job["kind"], job["status"]) == ("evidence_pack", "queued")
    assert job["progress"] == {"record_id": record["id"], "phase": "queued", "bytes": 0}
    assert packer.api().get(f"/v1/jobs/{job['id']}").json == job
    assert packer.ask(record).json["job"]["id"] == job["id"]
    packer.work()
    done = packer.api().get(f"/v1/jobs/{job['id']}").json
    assert (done["status"], done["progress"]["phase"]) == ("succeeded", "built")
    assert done["progress"]["bytes"] == done["progress"]["total"]
    assert packer.api().get("/v1/jobs?kind=evidence_pack").json["data"] == [done]
    assert packer.api().request("POST", f"/v1/jobs/{job['id']}/cancel").status_code == 409


def test_a_built_pack_is_answered_with_all_that_tells_what_it_is(packer: Packer) -> None:
    record = packer.record()
    data = packer.built(record)
    answer = packer.ask(record)
    assert answer.content_type == "application/zip"
    assert answer.content_length == len(data)
    assert answer.headers["ETag"] == f'"{sha256(data).hexdigest()}"'
    name = f"{record['id']}-evidence.zip"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}"'
    assert answer.headers["x-service-evidence"] == "current"
    assert "Preference-Applied" not in answer.headers, "the request did not wait"
    head = packer.api().request("HEAD", path_of(record), headers=AT_ONCE)
    assert (head.status_code, head.data, head.content_length) == (200, b"", len(data))
    assert head.headers["ETag"] == answer.headers["ETag"]


@pytest.mark.parametrize("part_bytes", [10_000, 10_000_000])
def test_any_range_is_that_part(
    packer: Packer, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", part_bytes)
    record = packer.record()
    data = packer.built(record)
    size, part = len(data), store.PART_BYTES
    for start, stop in (
        (0, 1),
        (0, size),
        (part - 1, part + 1),
        (part, part * 2),
        (size - 1, size),
    ):
        if start >= size:
            continue
        answer = packer.ask(record, Range=f"bytes={start}-{stop - 1}")
        assert (answer.status_code, answer.data) == (206, data[start:stop])
    assert packer.ask(record, Range="bytes=-5").data == data[-5:]
    etag = packer.ask(record).headers["ETag"]
    assert packer.ask(record, Range="bytes=0-3", **{"If-Range": '"other"'}).data == data
    assert packer.ask(record, **{"If-None-Match": etag}).status_code == 304
    refused(packer.ask(record, Range=f"bytes={size}-"), 416, "range-not-satisfiable")
    refused(packer.ask(record, **{"If-Match": '"other"'}), 412, "precondition-failed")


def test_ten_at_once_begin_one_job(packer: Packer) -> None:
    record = packer.record()
    answers = at_once(10, lambda _: packer.ask(record))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json["job"]["id"] for answer in answers}) == 1
    assert len(packer.jobs()) == 1


def test_the_document_says_what_each_answer_is(client: FlaskClient) -> None:
    paths = client.get("/openapi.json").json["paths"]  # type: ignore[index]
    answers = paths["/v1/records/{record_id}/evidence.zip"]["get"]["responses"]
    assert {status: list(answers[status]["content"]) for status in ("200", "202", "206")} == {
        "200": ["application/zip"],
        "202": ["application/json"],
        "206": ["application/zip"],
    }
    assert {"Location", "Retry-After", "Preference-Applied"} <= answers["202"]["headers"].keys()
    assert {"ETag", "Content-Disposition", "Preference-Applied"} <= answers["200"]["headers"].keys()
    assert {"ETag", "Content-Range"} <= answers["206"]["headers"].keys()
    verifier = paths["/verify.py"]["get"]
    assert verifier["security"] == []
    assert list(verifier["responses"]["200"]["content"]) == ["text/x-python"]


def test_the_verifier_is_served_as_it_is_in_packs(packer: Packer, client: FlaskClient) -> None:
    answer = client.get("/verify.py")
    assert answer.data == pack.verifier_source()
    assert answer.content_type == "text/x-python; charset=utf-8"
    assert answer.headers["ETag"] == f'"{sha256(answer.data).hexdigest()}"'
    again = client.get("/verify.py", headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    assert files_in(packer.built(packer.record()))["verify.py"] == answer.data
    assert sha256(answer.data).hexdigest() in client.get("/openapi.json").text
