"""oidc-provider (npm), a certified OpenID provider that somebody else wrote, under Node.js."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from tests.support.faults import until
from tests.support.servers.ports import own_port

PACKAGE = "oidc-provider@9.13.3"
_FOLDER = Path.home() / ".cache/record-service/oidc-provider"
_PROGRAM = """
import Provider from "oidc-provider";
const told = JSON.parse(process.argv[2]);
const provider = new Provider(told.issuer, {
  clients: [{
    client_id: told.client_id, client_secret: told.client_secret,
    redirect_uris: [told.back], post_logout_redirect_uris: [told.out],
  }],
  claims: {
    openid: ["sub"], email: ["email", "email_verified"], profile: ["name"], groups: ["groups"],
  },
  scopes: ["openid", "email", "profile", "groups"],
  pkce: { required: () => true },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({
    sub: id, name: "Grace Hopper", email: `${id}@example.com`, email_verified: true,
    groups: told.groups,
  }) }),
});
provider.listen(told.port, "127.0.0.1");
"""


def missing() -> str | None:
    """Return what this machine lacks to run it, if anything."""
    lacks = [name for name in ("node", "npm") if shutil.which(name) is None]
    return f"no {' and '.join(lacks)} here" if lacks else None


@contextmanager
def serving(
    *, client_id: str, client_secret: str, back: str, out: str, groups: list[str], log: Path
) -> Iterator[str]:
    """Run it; yield its issuer. `back` and `out` are the redirect URIs after sign-in and out."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    if not (_FOLDER / "node_modules/oidc-provider").is_dir():
        install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(_FOLDER), PACKAGE]
        subprocess.run(install, check=True, capture_output=True, timeout=300)
    program, port = _FOLDER / "serve.mjs", own_port()
    program.write_text(_PROGRAM)
    told = {
        "issuer": f"http://127.0.0.1:{port}",
        "port": port,
        "client_id": client_id,
        "client_secret": client_secret,
        "back": back,
        "out": out,
        "groups": groups,
    }
    with log.open("wb") as output:
        node = subprocess.Popen(
            ["node", str(program), json.dumps(told)], stdout=output, stderr=output
        )
    try:
        until(lambda: _answers(told["issuer"]))
        yield str(told["issuer"])
    finally:
        node.kill()
        node.wait()


def _answers(issuer: object) -> bool:
    try:
        return requests.get(f"{issuer}/.well-known/openid-configuration", timeout=5).ok
    except requests.ConnectionError:
        return False
