"""Each integration on the real package: the programs of docs/recorder.md as written."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dev.stack import ROOT
from tests.client.recorder.conftest import Arrived, steps_of
from tests.support.callers.api import FreshTenant
from tests.support.programs import frameworks
from tests.support.programs.documents import block, blocks, with_stand_in

pytestmark = pytest.mark.toolbox

PAGE = "docs/recorder.md"
Run = Callable[[str], str]


@pytest.fixture
def run(base_url: str, tenant: FreshTenant, tmp_path: Path) -> Run:
    """Return what runs a program with the environment of an agent."""

    def it(program: str) -> str:
        done = subprocess.run(
            [str(frameworks.python()), "-c", program],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "PYTHONPATH": str(ROOT / "client"),
                "SERVICE_BASE_URL": base_url,
                "SERVICE_API_KEY": tenant.root_key,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        # What was not recorded, or not sent, is said here.
        assert "recorded" not in done.stderr, done.stderr
        return done.stdout

    return it


@pytest.mark.parametrize(
    ("words", "framework"),
    [
        ("openai_agents", "openai_agents"),
        ("integrations.langchain", "langgraph"),
        ("integrations.pydantic_ai", "pydantic_ai"),
    ],
)
def test_a_run_of_a_framework_is_a_record_with_its_calls(
    run: Run, arrived: Arrived, words: str, framework: str
) -> None:
    run(with_stand_in(block(PAGE, "python", words), framework))
    found = arrived.one()
    assert found["kind"] == "invoke_agent"
    assert found["principal"] == "dana@example.com"
    (session,) = arrived.list("/v1/sessions")
    assert session["external_id"] == "chat-4711"
    steps = found["steps"]
    (call,) = (step for step in steps if step["kind"] == "execute_tool")
    assert call["name"] == "refund"
    assert call["status"] == "ok"
    assert call["inputs"]
    assert "paid back" in str(call["outputs"])
    # A model of OpenAI Agents tells of itself; the one here does not.
    chats = [step for step in steps if step["kind"] == "chat"]
    assert len(chats) == (0 if words == "openai_agents" else 2)
    known = {step["span_id"] for step in steps}
    assert len([step for step in steps if step.get("parent_span_id") not in known]) == 1
    assert all("ended_at" in step for step in steps)


def test_hooks_of_the_claude_agent_sdk_record_prompts_and_calls(run: Run, arrived: Arrived) -> None:
    run(block(PAGE, "python", "claude_agent_sdk"))
    run(Path(__file__).with_name("claude.py").read_text("utf-8"))
    found = arrived.one()
    assert found["title"] == "Please refund order 4711."
    steps = steps_of(found)
    assert (steps["refund"]["outputs"], steps["refund"]["status"]) == ({"paid": True}, "ok")
    (failed,) = steps["mail"]["events"]
    assert failed["attributes"]["exception.message"] == "no such address"


def test_calls_of_an_mcp_server_s_tools_are_records(run: Run, arrived: Arrived) -> None:
    program = block(PAGE, "python", "integrations.mcp")
    assert "paid back 4870" in run(program)
    wrong = run(program.replace('"cents": 4870', '"cents": "many"'))
    assert "True" in wrong
    good, bad = arrived.records()
    assert (good["title"], good["kind"]) == ("refund", "execute_tool")
    assert good["steps"][0]["inputs"] == {"order": "4711", "cents": 4870}
    assert "paid back 4870" in str(good["steps"][0]["outputs"])
    assert bad["steps"][0]["status"] == "error"


def test_spans_pass_through_the_spool(run: Run, arrived: Arrived) -> None:
    program = block(PAGE, "python", "otel.exporter")
    run(program.replace("otel.exporter()", "otel.exporter(mask=lambda text: 'x' + text)"))
    (trace,) = arrived.list("/v1/traces")
    assert (trace["status"], trace["spans"]) == ("staged", 1)


_HIDING = """
import gzip, logging, sqlite3, sys, tempfile
from pathlib import Path
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from record_service import otel

logging.disable()  # the service is away
folder = tempfile.mkdtemp()
exporter = otel.exporter(
    spool=folder, base_url="http://127.0.0.1:9", mask=lambda text: text.replace("4111", "****")
)
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = provider.get_tracer("refunds", attributes={"of": "4111"})
with tracer.start_as_current_span("4111", attributes={"card.4111": "4111"}) as span:
    span.set_attribute("large", b"4111" + bytes(9 * 1024 * 1024))
    span.add_event("4111", {"4111": ["4111", 4111]})
(path,) = Path(folder).rglob("*.sqlite")
rows = sqlite3.connect(path).execute("SELECT body FROM entries").fetchall()
sys.stdout.write("".join(repr(gzip.decompress(body)) for (body,) in rows))
"""


def test_no_part_of_a_span_passes_by_the_mask(run: Run) -> None:
    written = run(_HIDING)
    assert "card.****" in written
    assert "4111" not in written


def test_each_program_of_the_page_is_run(run: Run) -> None:
    programs = blocks((ROOT / PAGE).read_text("utf-8"), "python")
    assert len(programs) == 7
    run(block(PAGE, "python", "hide_cards"))
