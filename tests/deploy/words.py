"""The deployment of docs/setup.md, as written: a fresh clone, an unprivileged user, one shell.

Only its examples are replaced: addresses, passwords and the key. What setup.md says of `REDIS_URL`
by TLS and of private receivers is added to the settings, for here both are needed.
"""

import os
import pwd
import subprocess
from pathlib import Path

from dev import processes
from dev.stack import ROOT
from tests.deploy.command import heading, say
from tests.deploy.servers import ALONE, Servers
from tests.support.programs.documents import block, blocks
from tests.support.servers.ports import own_port
from tests.support.servers.receivers import Receiver

_PATH = "/usr/local/bin:/usr/bin:/bin"
_REDIS_NUMBER = 5
# An installation from nothing is part of it.
_LONGEST_SECONDS = 600.0
# The examples that get values of ours.
DATABASE = "postgresql://records:secret@127.0.0.1/records"
REDIS = "REDIS_URL=redis://:secret@127.0.0.1:6379/0"
ADDRESS = "https://records.example.com"
RECEIVER = "https://hooks.example.com/records"
TENANT = '.venv/bin/python -m app.manage tenant create "Example Ltd"'
KEY = "svc_…"
EXAMPLES = (DATABASE, REDIS, ADDRESS, RECEIVER, TENANT, KEY)


def as_written(servers: Servers) -> None:
    """Run setup.md's section on deploying, then README's check of a pack, in a fresh clone."""
    heading("the documents' words in a fresh clone, as the user nobody")
    user = pwd.getpwnam("nobody")
    checkout = _cloned(servers.folder / "checkout", user)
    servers.make_database("as_written", ALONE)
    log = servers.folder / "as-written.log"
    with Receiver() as receiver, log.open("ab") as output:
        script = _replaced(written(), _values(servers, receiver))
        # What the shell has left behind ends with its session.
        process = processes.start(
            ["/bin/sh", "-e", "-c", script],
            env={**os.environ, "PATH": _PATH, "HOME": str(checkout)},
            cwd=checkout,
            account={"user": user.pw_uid, "group": user.pw_gid},
            output=output,
        )
        try:
            code = process.wait(_LONGEST_SECONDS)
        finally:
            processes.stop(process)
        assert code == 0, f"the documents' words end with {code}: {log}"
        assert receiver.requests, f"no finding arrived: {log}"
    assert log.read_text().endswith("\nVALID\n"), f"the pack is not verified: {log}"
    say("installed, released, started; a finding delivered, a pack verified, as written")


def written() -> str:
    """Return every command of setup.md's section, then README's check of a pack, as a script."""
    section = (ROOT / "docs" / "setup.md").read_text("utf-8").partition("\n## Deploying\n")[2]
    commands = blocks(section.partition("\n### ")[0], "sh")
    return "\n".join([*commands, block("README.md", "sh", "verify.py pack.zip")])


def _values(servers: Servers, receiver: Receiver) -> dict[str, str]:
    """Return what stands here for each example."""
    port = own_port()
    settings = {
        "REDIS_URL": servers.redis_url(_REDIS_NUMBER),
        **servers.redis_settings,
        "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
        "HOST": "127.0.0.1",
        "PORT": str(port),
    }
    return {
        DATABASE: servers.database_url(ALONE, "as_written"),
        REDIS: "\n".join(f"{name}={text}" for name, text in settings.items()),
        ADDRESS: f"http://127.0.0.1:{port}",
        RECEIVER: receiver.url(),
        TENANT: f"{TENANT} | tee made",
        KEY: "$(grep -o 'svc_[0-9A-Za-z]*' made)",
    }


def _replaced(script: str, values: dict[str, str]) -> str:
    for example in EXAMPLES:
        assert example in script, f"setup.md has no `{example}` to replace"
        script = script.replace(example, values[example])
    return script


def _cloned(folder: Path, user: pwd.struct_passwd) -> Path:
    """Clone what is committed here, for the user to own."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    subprocess.run(["chown", "-R", f"{user.pw_uid}:{user.pw_gid}", folder], check=True)
    return folder
