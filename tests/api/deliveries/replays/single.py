"""Requests for one test event or one replay."""

from typing import Any

from tests.support.callers.api import Api


def replay(api: Api, delivery: dict[str, Any], **options: Any) -> Any:
    path = f"/v1/webhooks/{delivery['webhook_id']}/deliveries/{delivery['id']}/replay"
    return api.post(path, **options)


def fire(api: Api, webhook: dict[str, Any], **options: Any) -> Any:
    return api.post(f"/v1/webhooks/{webhook['id']}/test", **options)
