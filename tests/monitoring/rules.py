"""Runs alert rules with promtool over what a service said before and after a fault."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.programs import debian
from tests.support.workers.monitored import Scrape, Series

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docs" / "monitoring" / "alerts.yml"
_GROWING = ("_total", "_count", "_bucket", "_sum")
# Minutes, a scrape in each: the fault happens after the first ten, and lasts.
_BEFORE, _AFTER = 10, 65
_FIRING = 'group by (alertname) (ALERTS{{alertstate="firing", alertname!~"{left_out}"}})'


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool, whatever comes of it."""
    found = debian.promtool()
    assert found, "there is no promtool: run `python -m tests.support.programs.debian`"
    return subprocess.run([found, *arguments], capture_output=True, text=True, check=False)


def verdict(
    scrapes: tuple[Scrape, Scrape, Scrape],
    fires: frozenset[str],
    folder: Path,
    *,
    left_out: frozenset[str] = frozenset(),
) -> str:
    """Return what promtool finds wrong, if not just these alerts fire; nothing if they do.

    The first two scrapes are of a service in order: what grew between them goes on growing so,
    once a minute, and what grew from the second to the third does after the fault. None fires
    before the fault. Of those `left_out` nothing is said.
    """
    series = [
        {"series": _named(each), "values": " ".join(_values(each, *scrapes))}
        for each in sorted(set().union(*scrapes))
    ]
    expected = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(fires)]
    firing = _FIRING.format(left_out="|".join(sorted(left_out)))
    test = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{_BEFORE}m", "exp_samples": []},
            {"expr": firing, "eval_time": f"{_BEFORE + _AFTER}m", "exp_samples": expected},
        ],
    }
    asked = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
    file = folder / "test.json"
    file.write_text(json.dumps(asked))
    done = run("test", "rules", str(file))
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _named(series: Series) -> str:
    name, labels = series
    return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels)}}}"


def _values(series: Series, first: Scrape, before: Scrape, after: Scrape) -> Iterator[str]:
    """Yield a series in promtool's notation: `a+bxn` is `a`, then `n` more, each by `b` larger."""
    grows = series[0].endswith(_GROWING)
    now = before.get(series)
    if now is None or series not in first:
        yield f"_x{_BEFORE + 1}"
        now = 0.0
    else:
        by = now - first[series] if grows else 0.0
        yield f"{now!r}{by:+.9f}x{_BEFORE}"
        now += by * _BEFORE
    if series not in after:
        yield f"_x{_AFTER}"
        return
    by = after[series] - before.get(series, 0.0) if grows else 0.0
    yield f"{now + by if grows else after[series]!r}{by:+.9f}x{_AFTER - 1}"
