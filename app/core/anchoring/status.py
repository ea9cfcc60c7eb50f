"""Anchoring status, computed from stored evidence.

It names what is configured and missing, what fails, and since when.
"""

from collections.abc import Mapping

from app.clock import rfc3339
from app.core.anchoring import cosigning, monitor
from app.core.anchoring.anchors import AnchoringState, Covered
from app.core.anchoring.evidence import Reach, Voucher
from app.core.anchoring.timestamping import PART as TIMESTAMPS
from app.models import AnchoringTrouble
from app.settings import Settings

_OTHERS = {
    Voucher.TIMESTAMPS: "stamped by a timestamp authority",
    Voucher.WITNESSES: "cosigned by a quorum of witnesses",
}
_MISSING = {
    Voucher.TIMESTAMPS: "No timestamp covers it.",
    Voucher.WITNESSES: "No quorum of witnesses covers it.",
}
_NONE_CONFIGURED = "Set TSA_URL or WITNESS_POLICY, or keep checkpoints yourself."


def asked(settings: Settings) -> frozenset[Voucher]:
    """Return who outside is asked to vouch, as this installation is set up."""
    wanted = {
        Voucher.TIMESTAMPS: settings.tsa_url is not None,
        Voucher.WITNESSES: bool(cosigning.asked(settings.witness_policy)),
    }
    return frozenset(each for each, is_asked in wanted.items() if is_asked)


def of_chain(standing: AnchoringState, covered: Covered, others: frozenset[Voucher]) -> str:
    """Say how far a chain is anchored, and who vouches for that; `others` as `asked` says."""
    sentences = [] if standing.enabled else [_switched_off(standing)]
    since = covered.unanchored_since
    unanchored = "" if since is None else f"unanchored since {rfc3339(since)}."
    if covered.through is None:
        return " ".join([*sentences, f"No entry is anchored: {unanchored}"])
    by = {each: words for each, words in _OTHERS.items() if each in covered.vouchers}
    sentences.append(f"Anchored up to entry {covered.through}, in {_log_with(by)}.")
    sentences += _missing(set(by), others)
    if unanchored:
        sentences.append(f"What came after is {unanchored}")
    return " ".join(sentences)


def of_log(reach: Reach | None, others: frozenset[Voucher]) -> str:
    """Say who vouches for the log, and for how many of its leaves."""
    if reach is None:
        return "Not anchored yet: the log has published nothing."
    sizes = {Voucher.TIMESTAMPS: reach.stamped, Voucher.WITNESSES: reach.witnessed}
    by = {
        each: f"{words} (the first {sizes[each]} leaves)"
        for each, words in _OTHERS.items()
        if sizes[each]
    }
    log = _log_with(by)
    return " ".join([f"{log[0].upper()}{log[1:]}.", *_missing(set(by), others)])


def trouble(found: AnchoringTrouble) -> str:
    """Say what fails to those whom it concerns; why is for the operator."""
    since = rfc3339(found.since)
    if found.alarm:
        return f"ALARM: this witness has cosigned another log of this name; since {since}"
    if found.part == TIMESTAMPS:
        return f"unstamped since {since}"
    if found.part == monitor.QUORUM:
        return f"without a quorum of witnesses since {since}"
    if found.part in monitor.PARTS:
        return f"unanchored since {since}"
    return f"not cosigned by this witness since {since}"


def _log_with(others: Mapping[Voucher, str]) -> str:
    if not others:
        return "the service's own log alone: no external evidence covers it"
    return f"the service's own log, {' and '.join(others.values())}"


def _switched_off(standing: AnchoringState) -> str:
    if standing.disabled_since is None:
        return "Anchoring is switched off, and no entry of the chain says since when."
    return f"Anchoring is switched off since {rfc3339(standing.disabled_since)}."


def _missing(there: set[Voucher], others: frozenset[Voucher]) -> list[str]:
    if not there and not others:
        return [_NONE_CONFIGURED]
    return [words for each, words in _MISSING.items() if each in others - there]
