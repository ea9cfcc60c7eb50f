"""The links in a mail."""

from dataclasses import dataclass
from uuid import UUID

from app import ids


@dataclass(frozen=True)
class Links:
    """Addresses below `base_url`; opening one needs a key of the tenant."""

    base_url: str

    @property
    def settings(self) -> str:
        """Where the address of the digest is changed."""
        return f"{self.base_url}/v1/tenant/settings"

    @property
    def digests(self) -> str:
        """Where the digests before are listed."""
        return f"{self.base_url}/v1/digests"

    def finding(self, finding_id: UUID) -> str:
        """Where one finding is read."""
        return f"{self.base_url}/v1/findings/{ids.text('fnd', finding_id)}"

    def findings_of(self, digest_id: UUID) -> str:
        """Where all findings are that a digest was made for."""
        return f"{self.base_url}/v1/findings?digest_id={ids.text('dig', digest_id)}"

    def webhook(self, webhook_id: UUID) -> str:
        """Where a webhook is read."""
        return f"{self.base_url}/v1/webhooks/{ids.text('whk', webhook_id)}"

    def unsubscribe(self, token: str) -> str:
        """Where the mail's reader clears the address."""
        return f"{self.base_url}/unsubscribe/{token}"
