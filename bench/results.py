"""Where a run is kept: one JSON file, with what must be known of the machine to read it."""

import json
import os
import platform
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import redis

from bench.lab import Lab
from bench.processes import ROOT

FOLDER = ROOT / "bench" / "results"


def machine(lab: Lab) -> dict[str, Any]:
    """Describe what the figures were measured on."""
    with psycopg.connect(lab.postgres.admin_url) as connection:
        version = connection.info.parameter_status("server_version")
    with redis.Redis.from_url(lab.valkey.url) as client:
        server: Any = client.info("server")
    return {
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "postgresql": version,
        "valkey": server.get("valkey_version", server["redis_version"]),
        "receiver": lab.receiver.name,
    }


def stolen_seconds() -> float:
    """Return the processor time that a hypervisor took since the start (`steal`, proc(5))."""
    (total,) = [line for line in Path("/proc/stat").read_text().splitlines() if line[:4] == "cpu "]
    return int(total.split()[8]) / os.sysconf("SC_CLK_TCK")


def write(
    began: datetime,
    about: dict[str, Any],
    options: Sequence[str],
    figures: Sequence[dict[str, Any]],
) -> Path:
    """Write one run, and return its file."""
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / f"{began:%Y-%m-%dT%H-%M-%SZ}.json"
    run = {
        "began": began.isoformat(),
        "options": list(options),
        "machine": about,
        "figures": figures,
    }
    file.write_text(json.dumps(run, ensure_ascii=False, indent=1) + "\n", "utf-8")
    return file
