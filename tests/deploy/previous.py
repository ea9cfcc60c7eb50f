"""The previous release beside this one: it serves while this one migrates, and after.

Without a tag there is none, and nothing is upgraded.
"""

import subprocess
from pathlib import Path

from dev.stack import ROOT
from tests.deploy import journey
from tests.deploy.figures import Figures
from tests.deploy.servers import Servers
from tests.deploy.site import Site, Variant
from tests.deploy.telling import heading, say

VARIANT = Variant("upgraded", 3, pooled=True)
_OLD = ("web-1", "worker-1", "scheduler-1")
_POSTED = 100
# What gets no lock within two seconds says so, and is run again (docs/operations.md).
_ATTEMPTS = 10


def upgraded(servers: Servers) -> list[Figures]:
    """Upgrade a deployment of the previous release while findings are posted."""
    tags = _git("tag", "--merged", "HEAD^", "--sort=-creatordate", cwd=ROOT).split()
    if not tags:
        heading("no release before this one is tagged: nothing to upgrade")
        return []
    code = servers.folder / "previous"
    _git("clone", "--quiet", str(ROOT), str(code), cwd=ROOT)
    _git("checkout", "--quiet", tags[0], cwd=code)
    # As `make` installs it.
    _said("make", ".venv/installed", cwd=code)
    heading(f"the previous release ({_git('log', '-1', '--format=%h %s', cwd=code)}) beside this")
    # A release before REDIS_CA_FILE trusts the authorities of this file.
    trusted = {"SSL_CERT_FILE": str(servers.ca_file)}
    old = Site(servers, VARIANT, VARIANT.name, trusted, code=code)
    new = Site(servers, VARIANT, VARIANT.name, old.settings)
    old.make_database()
    say(f"the previous release: {old.release()}")
    try:
        old.start(*_OLD)
        old.wait_for()
        with journey.tenant(old) as tenant:
            _replaced(old, new, tenant)
    finally:
        new.stop()
        old.stop()
    return []


def _replaced(old: Site, new: Site, tenant: journey.Tenant) -> None:
    """Replace the old processes one by one, as docs/operations.md says, workers first."""
    with tenant.traffic(old.base_urls[0]) as before:
        before.wait_for(_POSTED)
        say(f"this release, while findings are posted: {_released(new)}")
        before.wait_for(_POSTED)
        status, said = old.readiness(1)
        assert status == 200, said
        say("the old processes serve on, on the new schema, and are ready")
        new.start("worker-2")
        old.stop("worker-1")
        new.start("web-2", "scheduler-2")
        with tenant.traffic(new.base_urls[1]) as after:
            after.wait_for(_POSTED)
            before.wait_for(_POSTED)
            before.end()
            old.stop()
            new.wait_for()
            after.wait_for(_POSTED)
    for each in (before, after):
        assert not each.repeats, f"requests had to be repeated: {dict(each.repeats)}"
    closed = tenant.moved_to(new, 2).close_books(before, after)
    say(f"old and new side by side, then new alone, every request answered at once: {closed}")


def _released(new: Site) -> str:
    """Run `release` until it gets its locks; return what it says."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return new.release() + (f" (run {attempt} times)" if attempt > 1 else "")
        except AssertionError as error:
            if "lock timeout" not in str(error):
                raise
    raise AssertionError(f"`release` got no lock in {_ATTEMPTS} runs")


def _git(*arguments: str, cwd: Path) -> str:
    return _said("git", *arguments, cwd=cwd)


def _said(*command: str, cwd: Path) -> str:
    """Run a command; return what it printed, or fail with its errors."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"`{' '.join(command)}`: {done.stderr.strip()}"
    return done.stdout.strip()
