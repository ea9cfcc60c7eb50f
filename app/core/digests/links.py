"""The links in a mail: pages of the console, which a person opens, and signs in to."""

from dataclasses import dataclass
from uuid import UUID

from app import ids


@dataclass(frozen=True)
class Links:
    """URLs below `base_url`; all but `unsubscribe` lead through signing in with a key."""

    base_url: str

    @property
    def settings(self) -> str:
        """The URL of the settings, for changing the digest's address."""
        return f"{self.base_url}/console/settings"

    @property
    def digests(self) -> str:
        """The URL of the list of digests."""
        return f"{self.base_url}/console/mail"

    def finding(self, finding_id: UUID) -> str:
        """Return the URL of a finding."""
        return f"{self.base_url}/console/findings/{ids.text('fnd', finding_id)}"

    def findings_of(self, digest_id: UUID) -> str:
        """Return the URL of the list of a digest's findings."""
        return f"{self.base_url}/console/findings?digest_id={ids.text('dig', digest_id)}"

    def webhook(self, webhook_id: UUID) -> str:
        """Return the URL of a webhook."""
        return f"{self.base_url}/console/webhooks/{ids.text('whk', webhook_id)}"

    def unsubscribe(self, token: str) -> str:
        """Return the URL at which the mail's reader clears the address."""
        return f"{self.base_url}/unsubscribe/{token}"
