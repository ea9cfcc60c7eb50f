"""Anchors: a timestamp of random bytes, an answer of each witness, and what is not anchored."""

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from app.core.anchoring import cosigning, incidents, timestamping
from app.core.anchoring.timestamping import Authority
from app.ledger.policy import Policy, Witness
from app.lib.crypto.timestamps import NotStamped
from app.lib.outbound.addresses import EVERYWHERE
from app.lib.outbound.client import Answer, Outbound
from app.manage.doctor import findings
from app.manage.doctor.context import Context
from app.manage.doctor.findings import Finding, place

_SEE = "#something-is-not-anchored"
_MOST_WITNESSES = 16
_SECONDS = 10.0


def check_authority(context: Context) -> Iterator[Finding]:
    """Yield whether TSA_URL stamps, as TSA_CA_FILE trusts it."""
    authority = Authority.of(context.settings)
    if authority is None:
        yield _nobody(context) if context.settings.witness_policy is None else _no_authority()
        return
    outbound = Outbound(EVERYWHERE)
    try:
        data = secrets.token_bytes(32)
        stamp = timestamping.ask(outbound, authority, data)
    finally:
        outbound.close()
    where = place(authority.url)
    if isinstance(stamp, NotStamped):
        yield findings.failed(
            f"the timestamp authority at {where} gives none that counts: {stamp}",
            "let this host reach TSA_URL; set TSA_CA_FILE to that authority's root, and"
            " TSA_AUTHORIZATION if it asks for a login",
            see=_SEE,
        )
    else:
        yield findings.ok(f"the timestamp authority at {where} stamped random bytes")


def _no_authority() -> Finding:
    return findings.ok("TSA_URL is not set: witnesses alone anchor the log")


def _nobody(context: Context) -> Finding:
    text = "TSA_URL and WITNESS_POLICY are not set: no external evidence anchors the log"
    if context.is_on_this_machine:
        return findings.ok(text)
    mend = "set one of them, or keep checkpoints yourself"
    return findings.warning(text, mend, see="setup.md#anchors")


def check_witnesses(context: Context) -> Iterator[Finding]:
    """Yield which witnesses answer, and what is not anchored."""
    policy = context.settings.witness_policy
    if policy is not None:
        for line in policy.unchecked:
            yield findings.not_checked(f"WITNESS_POLICY, {line}, which is not checked here")
        yield from _witnesses(policy, context.patient(_SECONDS))
    with context.reading() as session:
        found = [(each.alarm, incidents.line(each)) for each in incidents.rows(session)]
    for is_alarm, text in found:
        if is_alarm:
            mend = "find the other log: a copy of this database, or a restored one"
            yield findings.failed(text, mend, see="#a-witness-alarm")
        else:
            mend = "make now NAME=stamp_checkpoint, or python -m scheduler now stamp_checkpoint"
            yield findings.warning(text, mend, see=_SEE)
    if not found:
        yield findings.ok("everything that should be anchored is")


def _witnesses(policy: Policy, seconds: float) -> Iterator[Finding]:
    asked = cosigning.asked(policy)
    outbound = Outbound(EVERYWHERE)
    try:
        with ThreadPoolExecutor(_MOST_WITNESSES) as pool:
            answers = list(
                pool.map(lambda each: _ask(outbound, each, seconds), asked[:_MOST_WITNESSES])
            )
    finally:
        outbound.close()
    met = policy.is_met_by(
        each.key
        for each, answer in zip(asked, answers, strict=False)
        if answer.status is not None and each.key.checkable
    )
    for each, answer in zip(asked, answers, strict=False):
        yield _judge(each, answer, met=met)
    if len(asked) > _MOST_WITNESSES:
        yield findings.not_checked(f"{len(asked) - _MOST_WITNESSES} more witnesses of the policy")


def _ask(outbound: Outbound, witness: Witness, seconds: float) -> Answer:
    """Send a witness an empty request, which it refuses, and which changes nothing there."""
    url = f"{(witness.url or '').rstrip('/')}/add-checkpoint"
    return outbound.send(url, b"", {}, deadline_seconds=seconds)


def _judge(witness: Witness, answer: Answer, *, met: bool) -> Finding:
    text = f"witness {witness.name} at {place(witness.url or '')}"
    mend = "let this host reach it; correct its URL in WITNESS_POLICY"
    if answer.status is None:
        tell = findings.warning if met else findings.failed
        return tell(f"{text} does not answer: {answer.error}", mend, see="#the-quorum-is-away")
    if answer.status == 404 or answer.status >= 500:
        return findings.warning(f"{text} answers with the status {answer.status}", mend, see=_SEE)
    if not witness.key.checkable:
        return findings.warning(
            f"{text} answers, and its key's algorithm is not checked here",
            "name its Ed25519 key (algorithm 04) in WITNESS_POLICY",
            see="setup.md#anchors",
        )
    return findings.ok(f"{text} answers")
