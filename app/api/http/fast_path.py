"""The fast path: small POSTs of a hot route, answered on the event loop and without Flask.

Only those that are good and plain. Any other, and every refusal and error, is Flask's to answer: it
gets the request as it came, and what became of it so far.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any
from uuid import UUID

from flask import Flask, request

from app import ids
from app.api.http import request_hooks
from app.api.http.access import auth, rate_limit
from app.api.http.idempotency import KEY
from app.api.http.requests.headers import REQUEST_ID, REQUEST_ID_FORM
from app.api.http.requests.parsing import MEDIA_TYPE
from app.api.http.services import EXTENSION, Services
from app.core import idempotency
from app.core.callers import Caller, Role
from app.core.idempotency import Answered
from app.lib import canonical_json, forwarded
from app.lib.gateway.answers import Written
from app.lib.gateway.gateway import READY, WAITED, Environ, Scope
from app.schemas.schema import Schema

# What has become of a request here: an `Answered`, or the error.
_OUTCOME = "record-service.outcome"
# One caller's at once; those beyond take turns with all others, for threads.
_MOST_OF_ONE = 32
_MEDIA_TYPE = MEDIA_TYPE.encode()
# These Flask reads in other ways than the one below.
_UNUSUAL = frozenset((b"content-encoding", b"x-api-key", b"transfer-encoding", b"expect"))
_REPEATED = b"idempotency-key"


@dataclass(frozen=True)
class Route:
    """A hot route: its path, who may use it, its body, and what it does."""

    path: str
    role: Role
    schema: Schema
    submit: Callable[[Caller, dict[str, Any], idempotency.Request | None], Awaitable[Answered]]


@dataclass(frozen=True)
class _Asked:
    """A request that is good, as far as can be told without the database."""

    caller: Caller
    body: dict[str, Any]
    repeat: idempotency.Request | None


class FastPath:
    """Answers the POSTs of one route, for the gateway."""

    def __init__(self, app: Flask, route: Route) -> None:
        """`app` answers all that is not answered here."""
        self._here: Services = app.extensions[EXTENSION]
        self._limits: rate_limit.Limits = app.extensions[rate_limit.EXTENSION]
        self._route = route
        settings = self._here.settings
        fixed = {"Content-Type": MEDIA_TYPE, **request_hooks.fixed_headers(settings)}
        self._fixed = [(name.lower().encode(), value.encode()) for name, value in fixed.items()]
        self._proxy_header = settings.proxy_header.lower().encode()
        self._under_way: Counter[UUID] = Counter()

        @lru_cache(maxsize=1024)
        def client_address(peer: str, sent: str) -> str:
            name, trusted = settings.proxy_header, settings.trusted_proxies
            return forwarded.client_address(peer, name, sent, trusted)

        self._client_address = client_address

    async def __call__(self, scope: Scope, body: bytes) -> "Written | Environ":
        """Answer a request whose body is read, or return what Flask has to know of it."""
        began = perf_counter()
        headers = dict(scope["headers"])
        asked = self._read(scope, headers, body)
        if asked is None:
            return {}
        caller = asked.caller
        spent = rate_limit.nearest(self._limits, caller, 1)
        known: Environ = {READY: began, WAITED: True}
        if spent.exceeded:
            return known
        self._under_way[caller.tenant_id] += 1
        try:
            answered = await self._route.submit(caller, asked.body, asked.repeat)
        except Exception as error:  # noqa: BLE001  # Flask answers it
            return {**known, _OUTCOME: error}
        finally:
            self._under_way[caller.tenant_id] -= 1
            if not self._under_way[caller.tenant_id]:
                del self._under_way[caller.tenant_id]
        if answered.replayed:
            return {**known, _OUTCOME: answered}
        sent_id = headers.get(REQUEST_ID.lower().encode(), b"").decode("latin-1")
        request_id = sent_id if REQUEST_ID_FORM.fullmatch(sent_id) else ids.new().hex
        peer = (scope.get("client") or ("",))[0]
        sent = headers.get(self._proxy_header, b"").decode("latin-1")
        request_hooks.record(
            self._here,
            began,
            request_hooks.Answer(
                request_id=request_id,
                method="POST",
                route=self._route.path,
                status=answered.status,
                problem=None,
                address=self._client_address(peer, sent),
                key_id=ids.text("key", caller.key_id),
            ),
        )
        own = {REQUEST_ID: request_id, "Content-Length": str(len(answered.body)), **spent.headers()}
        return Written(
            answered.status,
            [*self._fixed, *((name.lower().encode(), own[name].encode()) for name in own)],
            answered.body,
        )

    def _read(self, scope: Scope, headers: Mapping[bytes, bytes], body: bytes) -> _Asked | None:
        """Read a request; None for one that Flask is to read."""
        if scope["query_string"] or len(headers) != len(scope["headers"]):
            return None
        if headers.get(b"content-type") != _MEDIA_TYPE or not _UNUSUAL.isdisjoint(headers):
            return None
        # Flask counts `HTTP_` with each name.
        if sum(map(len, headers)) + sum(map(len, headers.values())) > request_hooks.MAX_HEADERS / 2:
            return None
        if request_hooks.HOST.fullmatch(headers.get(b"host", b"").decode("latin-1")) is None:
            return None
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        key_text = auth.key_text(authorization=authorization)
        caller = self._here.keyring.known(key_text)
        if caller is None or not caller.role.allows(self._route.role):
            return None
        if self._under_way[caller.tenant_id] >= _MOST_OF_ONE:
            return None
        try:
            sent = canonical_json.parse(body)
        except ValueError:
            return None
        loaded = self._route.schema.load_plainly(sent) if type(sent) is dict else None
        if loaded is None:
            return None
        repeat = None
        if _REPEATED in headers:
            key = headers[_REPEATED].decode("latin-1")
            if KEY.fullmatch(key) is None:
                return None
            canonical = canonical_json.dumps(sent)
            repeat = idempotency.Request.of(caller, key, "POST", self._route.path, canonical)
        self._here.keyring.note_use(caller)
        return _Asked(caller, loaded, repeat)


def outcome() -> Answered | None:
    """Return what the fast path has done for this request, if it did; raises the error it met."""
    # Taken out: an error that is raised holds its frames, and they the environ.
    found = request.environ.pop(_OUTCOME, None)
    if isinstance(found, Exception):
        raise found
    assert found is None or isinstance(found, Answered)  # noqa: S101  # narrows WSGI's dict
    return found
