"""What happens to the front door, and to the spans that it took."""

from tests.support.callers.api import Api
from tests.support.spans import STAGED, request, span
from tests.support.workers.monitored import Monitored

_PROTOBUF = {"Content-Type": "application/x-protobuf"}


def _send(api: Api, status: int = 200, **members: object) -> None:
    body = request(span(1, **members)).SerializeToString()  # type: ignore[arg-type]  # of a span
    answer = api.post("/v1/traces", data=body, headers=_PROTOBUF)
    assert answer.status_code == status, answer.data


def traces_wait(service: Monitored) -> None:
    """No worker assembles what is due."""
    _send(service.api(service.tenant().root_key))
    service.run("UPDATE traces SET due_at = clock_timestamp() - interval '5 minutes'")


def staging_full(service: Monitored) -> None:
    tenant = service.tenant()
    service.run(STAGED, tenant=tenant.id, bytes=service.settings.tenant_staged_mib << 20)
    # The first request counts, and the next is refused.
    _send(service.api(tenant.root_key), trace_id=bytes(15) + b"2")
    _send(service.api(tenant.root_key), 429, trace_id=bytes(15) + b"3")


def trace_damaged(service: Monitored) -> None:
    """A staged span cannot be read, as nothing writes it."""
    _send(service.api(service.tenant().root_key))
    service.run("UPDATE staged_spans SET body = '\\xff'")
    service.run("UPDATE traces SET due_at = clock_timestamp()")
    service.runtime.assembler.run(until=float("inf"))


def spans_rejected(service: Monitored) -> None:
    _send(service.api(service.tenant().root_key), span_id=b"short")
