"""The dashboard asks for what the service shows, in queries that Prometheus can read."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring import rules
from tests.monitoring.test_alerts import NAME, exposed
from tests.support.workers.monitored import Monitored

pytestmark = pytest.mark.toolbox

DASHBOARD: dict[str, Any] = json.loads(
    (rules.ROOT / "docs" / "monitoring" / "dashboard.json").read_text("utf-8")
)
ROWS = ("Deliveries", "Lanes", "Jobs", "Log and audit", "Web", "Database", "Processes")


def queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def test_every_query_names_what_the_service_shows(service: Monitored) -> None:
    shown = exposed(service)
    for query in queries():
        named = set(NAME.findall(query))
        assert named, query
        assert named <= shown, query


def test_every_query_can_be_read(tmp_path: Path) -> None:
    # promtool reads rules: so each query becomes one.
    asked = [
        {"record": f"query_{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, query in enumerate(queries())
    ]
    file = tmp_path / "queries.json"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": asked}]}))
    done = rules.run("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(asked)} rules found" in done.stdout


@pytest.mark.parametrize("title", ROWS)
def test_every_subject_has_a_row(title: str) -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert any(row.startswith(title) for row in rows)


def test_grafana_can_import_it() -> None:
    """Numbers of panels are unique, no two overlap, and the data source is chosen on the page."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(
                re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"])))
            )
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["name"], variable["type"]) == ("datasource", "datasource")
