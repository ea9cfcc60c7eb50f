"""Each alert fires for its fault and no other does; none fires for a service in order."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring import rules
from tests.monitoring.faults import FAULTS, TIMED
from tests.support.evidence.logs import add_leaves
from tests.support.workers.monitored import Monitored

pytestmark = pytest.mark.toolbox

NAME = re.compile(r"\b(?:record_service|http)_[a-z_]+")
ALERTS: dict[str, Any] = {
    rule["alert"]: rule
    for group in yaml.safe_load(rules.RULES.read_text("utf-8"))["groups"]
    for rule in group["rules"]
}


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_fires_its_alerts_and_no_others(
    service: Monitored, name: str, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    first = service.scrape()
    service.sweep()
    before = service.scrape()
    fault.happens(service)
    if fault.sweeps:
        service.sweep()
    after = service.scrape()
    seen, left_out = (first, before, after), TIMED - fault.fires
    said = rules.verdict(seen, fault.fires, tmp_path, left_out=left_out)
    assert said == "", said


def test_no_alert_fires_for_a_service_in_order(service: Monitored, tmp_path: Path) -> None:
    seen = []
    for _ in range(3):
        seen.append(service.scrape())
        service.sweep()
    scrapes = (seen[0], seen[1], seen[2])
    said = rules.verdict(scrapes, frozenset(), tmp_path, left_out=TIMED)
    assert said == "", said


@pytest.mark.parametrize(
    "shown",
    [
        'record_service_messages_total{actor="deliver",result="failed"',
        'record_service_job_steps_total{kind="bulk_replay",result="failed"',
    ],
)
def test_a_web_process_of_another_name_shows_no_new_fault(shown: str, tmp_path: Path) -> None:
    """Its figures are the stack's: what failed months ago is in its first scrape."""
    firing = 'ALERTS{alertname="ServiceFault"}'
    series = [
        {"series": f'{shown},instance="a"}}', "values": "3x30"},
        {"series": f'{shown},instance="b"}}', "values": "_x31 3x30"},
    ]
    asked = [{"expr": firing, "eval_time": f"{at}m", "exp_samples": []} for at in (32, 40, 50)]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    file = tmp_path / "test.json"
    told = {"rule_files": [str(rules.RULES)], "evaluation_interval": "1m", "tests": [test]}
    file.write_text(json.dumps(told))
    done = rules.run("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_fault() -> None:
    assert set().union(*(fault.fires for fault in FAULTS.values())) == set(ALERTS)


def test_promtool_finds_the_rules_in_order() -> None:
    done = rules.run("check", "rules", str(rules.RULES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_an_alert_leads_to_its_line_in_the_manual(name: str) -> None:
    page, _, anchor = ALERTS[name]["annotations"]["runbook_url"].partition("#")
    dashed = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
    assert anchor == dashed
    (line,) = re.findall(
        rf'^\| [^|]*<a id="{anchor}"></a>\*\*{name}\*\*[^|]*\| (.+) \| (.+) \|$',
        (rules.ROOT / page).read_text("utf-8"),
        re.MULTILINE,
    )
    assert all(cell.strip() for cell in line)
    assert ALERTS[name]["labels"]["severity"] in ("info", "warning", "critical")


def test_alerts_name_only_what_the_service_shows(service: Monitored) -> None:
    shown = exposed(service)
    for name, rule in ALERTS.items():
        named = set(NAME.findall(rule["expr"]))
        assert named, name
        assert named <= shown, f"{name}: {named - shown}"


def exposed(service: Monitored) -> set[str]:
    """Return the name of every series that the service shows, or would after its first event."""
    add_leaves(service.database, 1)
    service.runtime.log.run()
    families = service.api(service.token).get("/metrics").text
    kinds = re.findall(r"^# TYPE (\w+) (\w+)$", families, re.MULTILINE)
    histograms = {name for name, kind in kinds if kind == "histogram"}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    return {name for name, _ in kinds} | parts
