"""`README.txt`: what a pack holds and how an auditor verifies it (the template `readme.txt`)."""

import textwrap
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app.evidence.bundle import Bundle
from app.evidence.pack.evidence import Evidence, Proven, SessionEvidence
from app.ledger.notes import Checkpoint
from app.lib.text_sanitizer import one_line, visible


def _hanging(text: str, name: str) -> str:
    """Write what a file is behind its name, in lines of up to 100 characters."""
    return textwrap.fill(
        text,
        width=100,
        initial_indent=f"{name:<24}",
        subsequent_indent=" " * 24,
        break_long_words=False,
        break_on_hyphens=False,
    )


# Plain text: nothing in it is HTML.
_ENVIRONMENT = Environment(  # noqa: S701
    loader=FileSystemLoader(Path(__file__).parent),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters |= {"hanging": _hanging, "one_line": one_line, "visible": visible}


def of_record(
    evidence: Evidence, checkpoint: Checkpoint, read: Bundle, names: Iterable[str]
) -> bytes:
    """Return the text of a record's pack, which has the files with these names, in UTF-8."""
    return _written(
        evidence,
        checkpoint,
        names,
        about=read["record"],
        approvals=read.get("approvals", []),
        steps=_steps(evidence, checkpoint.size),
    )


def of_session(
    evidence: SessionEvidence, checkpoint: Checkpoint, told: Mapping[str, Any], names: Iterable[str]
) -> bytes:
    """Return the same of a session's pack; `told` is its statement."""
    return _written(evidence, checkpoint, names, about=told["session"], session=told)


def _written(
    evidence: Proven, checkpoint: Checkpoint, names: Iterable[str], **of_kind: object
) -> bytes:
    said = {"session": None, "evidence": evidence, "checkpoint": checkpoint, "names": set(names)}
    return _ENVIRONMENT.get_template("readme.txt").render(said | of_kind).encode("utf-8")


def _steps(evidence: Evidence, size: int) -> Iterator[tuple[str, str]]:
    """Yield, from the leaf to the root, the two sides of each node in shell."""
    node, last = evidence.leaf_index, size - 1
    for each in evidence.path:
        sibling = b64encode(each).decode()
        if node % 2 or node == last:
            yield sibling, "$h"
            while node and node % 2 == 0:
                node, last = node // 2, last // 2
        else:
            yield "$h", sibling
        node, last = node // 2, last // 2
