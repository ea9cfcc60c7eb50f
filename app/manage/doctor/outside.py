"""What lies outside the stores: head of the log, authority, witnesses, mail server, receivers."""

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from app import ids
from app.core.anchoring import cosigning, timestamping
from app.core.anchoring.timestamping import Authority
from app.core.blobs import store as blob_store
from app.core.blobs.store import Blob
from app.core.digests import schedule
from app.core.health import probes
from app.core.health.parts import Part, failed, not_checked, ok, warning
from app.core.log import head_store
from app.core.log import status as log_status
from app.database import cursor
from app.errors import LogHalted, Unavailable
from app.evidence.timestamps import NotStamped
from app.ledger.policy import Policy, Witness
from app.lib.mail.mailer import NotAccepted, Refusal
from app.lib.mail.smtp import Smtp
from app.lib.outbound.addresses import EVERYWHERE
from app.lib.outbound.client import Answer, Outbound
from app.lib.stores import place
from app.manage.doctor.context import Context
from app.models import NO_TENANT

_NOT_ANCHORED = "#something-is-not-anchored"
_NO_DIGEST = "#a-digest-does-not-arrive"
_OBJECTS = "#the-object-store"
_NO_DELIVERY = "#deliveries-fail"
_MOST_WITNESSES = 16
_MOST_RECEIVERS = 8
# Deadlines of one question.
_WITNESS_SECONDS = _MAIL_SECONDS = 10.0
_RECEIVER_SECONDS = 8.0


def log(context: Context) -> Iterator[Part]:
    """Yield what keeps the log from signing, held against its head outside the database."""
    context.require_schema()
    store = head_store.opened(context.settings.log_head_url)
    now = log_status.read(context.database, store)
    problems: dict[str, str] = {}
    for each in (now.head, now.tree):
        if isinstance(each, LogHalted):
            problems.setdefault(each.slug, each.detail)
    if now.generation is None:
        yield ok("the log has not begun: the first integration begins it")
    elif not problems and now.generation.trouble is not None:
        problems[now.generation.trouble] = "a worker found so, and signs nothing"
    for slug, detail in problems.items():
        yield probes.halted(slug, detail)
    if now.generation is not None and not problems:
        compared = "the head outside agrees" if now.has_store else "no head was compared"
        yield ok(f"{now.size} leaves are published; {compared}")


def objects(context: Context) -> Iterator[Part]:
    """Yield whether BLOB_URL's store takes, gives and deletes an object, and what is not erased."""
    context.require_schema()
    with context.reading() as session:
        found = [*probes.unerased(session, context.settings)]
    yield from found
    blobs = blob_store.of(context.settings.blob_url)
    if blobs is None:
        if not found:
            yield ok("BLOB_URL is not set: bytes lie in the database")
        return
    probe = Blob(ids.new(), "bundles", NO_TENANT, NO_TENANT)
    content = probe.blob.bytes
    try:
        if not blobs.put([(probe, content)]) or blobs.get([probe])[probe] != content:
            raise Unavailable("The object store (BLOB_URL) takes no object, or gives another.")
        blobs.erase([probe])
    except Unavailable as error:
        yield failed(error.detail, "let this host write, read, list and delete there", see=_OBJECTS)
        return
    yield ok("it takes, gives and deletes objects")


def authority(context: Context) -> Iterator[Part]:
    """Yield whether TSA_URL stamps random bytes, as TSA_CA_FILE trusts it."""
    asked = Authority.of(context.settings)
    if asked is None:
        nobody = "TSA_URL and WITNESS_POLICY are not set: no external evidence anchors the log"
        if context.settings.witness_policy is not None:
            yield ok("TSA_URL is not set: witnesses alone anchor the log")
        elif context.is_on_this_machine:
            yield ok(nobody)
        else:
            mend = "set one of them, or keep checkpoints yourself"
            yield warning(nobody, mend, see="setup.md#anchors")
        return
    outbound = Outbound(EVERYWHERE)
    try:
        stamp = timestamping.ask(outbound, asked, secrets.token_bytes(32))
    finally:
        outbound.close()
    where = place(asked.url)
    if isinstance(stamp, NotStamped):
        yield failed(
            f"the timestamp authority at {where} gives none that counts: {stamp}",
            "let this host reach TSA_URL; set TSA_CA_FILE to that authority's root, and"
            " TSA_AUTHORIZATION if it asks for a login",
            see=_NOT_ANCHORED,
        )
    else:
        yield ok(f"the timestamp authority at {where} stamped random bytes")


def witnesses(context: Context) -> Iterator[Part]:
    """Yield which witnesses answer."""
    policy = context.settings.witness_policy
    if policy is None:
        yield ok("WITNESS_POLICY is not set: no witness is asked")
        return
    for line in policy.unchecked:
        yield not_checked(f"WITNESS_POLICY, {line}, which is not checked here")
    yield from _witnesses(policy, context.patient(_WITNESS_SECONDS))


def _witnesses(policy: Policy, seconds: float) -> Iterator[Part]:
    asked = cosigning.asked(policy)
    outbound = Outbound(EVERYWHERE)

    def ask(witness: Witness) -> Answer:
        """Send a witness an empty request, which it refuses, and which changes nothing there."""
        url = f"{(witness.url or '').rstrip('/')}/add-checkpoint"
        return outbound.send(url, b"", {}, deadline_seconds=seconds)

    try:
        with ThreadPoolExecutor(_MOST_WITNESSES) as pool:
            answers = list(pool.map(ask, asked[:_MOST_WITNESSES]))
    finally:
        outbound.close()
    answered = list(zip(asked, answers, strict=False))
    met = policy.is_met_by(
        each.key for each, answer in answered if answer.status is not None and each.key.checkable
    )
    for each, answer in answered:
        yield _judge(each, answer, met=met)
    if len(asked) > _MOST_WITNESSES:
        yield not_checked(f"{len(asked) - _MOST_WITNESSES} more witnesses of the policy")


def _judge(witness: Witness, answer: Answer, *, met: bool) -> Part:
    text = f"witness {witness.name} at {place(witness.url or '')}"
    mend = "let this host reach it; correct its URL in WITNESS_POLICY"
    if answer.status is None:
        tell = warning if met else failed
        return tell(f"{text} does not answer: {answer.error}", mend, see="#the-quorum-is-away")
    if answer.status == 404 or answer.status >= 500:
        return warning(f"{text} answers with the status {answer.status}", mend, see=_NOT_ANCHORED)
    if not witness.key.checkable:
        return warning(
            f"{text} answers, and its key's algorithm is not checked here",
            "name its key of algorithm 04 or 06 in WITNESS_POLICY",
            see="setup.md#anchors",
        )
    return ok(f"{text} answers")


def mail(context: Context) -> Iterator[Part]:
    """Yield whether a digest would be taken, as far as to its recipient, and what refuses some."""
    settings = context.settings
    server = settings.smtp_url
    if server is None:
        yield from _no_mail_server(context)
    else:
        where = f"{server.host}:{server.port}"
        domain = settings.mail_from.rpartition("@")[2]
        seconds = context.patient(_MAIL_SECONDS)
        try:
            Smtp(server, domain, opening_seconds=seconds).probe(settings.mail_from)
        except NotAccepted as error:
            mend = "correct SMTP_URL and MAIL_FROM, and let this host reach the server"
            yield failed(f"{where}: {error}", mend, see=_NO_DIGEST)
        else:
            yield ok(f"{where} takes mails from {settings.mail_from}")
    if settings.takes_mail:
        with context.reading() as session:
            found = list(probes.OF_DATABASE["mail"](session, settings))
            refused = schedule.counted(schedule.standing(session))[Refusal.RECIPIENT]
        yield from found
        if refused:
            yield warning(
                f"the mail server refuses the recipients of {refused} digests",
                "have those tenants change notification_email",
                see=_NO_DIGEST,
            )


def _no_mail_server(context: Context) -> Iterator[Part]:
    fate = "wait" if context.settings.mail_folder is None else "become files that count as sent"
    with context.reading() as session:
        query = "SELECT count(*) FROM tenants WHERE notification_email IS NOT NULL"
        (tenants,) = cursor(session).execute(query).fetchone() or (0,)
    if tenants and not context.is_on_this_machine:
        reason = f"SMTP_URL is not set, and {tenants} tenants want digests: these {fate}"
        yield failed(reason, "set SMTP_URL and MAIL_FROM", see="setup.md#the-digest")
    else:
        yield ok(f"SMTP_URL is not set: digests, if any, {fate}")


# The newest: enough of them to find some hosts.
_URLS = """
SELECT substring(url FROM '^https?://[^/?#]+') FROM webhooks
 WHERE status = 'enabled' AND deleted_at IS NULL ORDER BY id DESC LIMIT 200
"""


def receivers(context: Context) -> Iterator[Part]:
    """Yield which webhooks' hosts the worker's own client reaches; no request is sent to any."""
    with context.reading() as session:
        urls = [row[0] for row in cursor(session).execute(_URLS).fetchall()]
    hosts = list({place(url): url for url in urls}.items())[:_MOST_RECEIVERS]
    if not hosts:
        yield not_checked("no webhook is enabled")
        return
    settings = context.settings
    outbound = Outbound(
        settings.webhook_allowed_networks,
        nat64_prefixes=settings.webhook_nat64_prefixes,
        authorities=settings.webhook_ca_file,
    )
    seconds = context.patient(_RECEIVER_SECONDS)
    with ThreadPoolExecutor(_MOST_RECEIVERS) as pool:
        said = list(pool.map(lambda host: outbound.reach(host[1], deadline_seconds=seconds), hosts))
    failing = {where: why for (where, _), why in zip(hosts, said, strict=True) if why is not None}
    if len(failing) == len(hosts) > 1:
        yield failed(
            f"none of {len(hosts)} receivers is reached: the way out may be closed",
            "let workers connect to public addresses (443), and resolve their names",
            see=_NO_DELIVERY,
        )
    for where, why in failing.items():
        yield warning(f"{where} is not reached: {why}", "ask its owner", see=_NO_DELIVERY)
    if len(failing) < len(hosts):
        yield ok(f"{len(hosts) - len(failing)} of {len(hosts)} receivers are reached")
