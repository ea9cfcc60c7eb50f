"""The evidence that is chosen for a leaf, as the database has it now."""

from app.core.anchoring import evidence
from app.core.log import publication
from app.ledger.policy import Policy
from tests.support.evidence.anchoring import Place


def chosen(place: Place, index: int, policy: Policy | None) -> evidence.Evidence:
    with place.database.across_tenants(snapshot=True) as session:
        last = publication.current(session)
        assert last is not None
        trusted = place.runtime.settings.tsa_ca_file
        return evidence.Chooser(session, last, policy, trusted).best(index)


def chosen_size(place: Place, index: int, policy: Policy | None) -> int:
    return chosen(place, index, policy).published.checkpoint.size
