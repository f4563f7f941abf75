"""The rules and the queries by promtool, and the dashboard by the types of Grafana."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.integrations.operations.names import OPERATIONS, dashboard_expressions


@pytest.mark.parametrize(
    "command",
    ["check config prometheus.yml", "check rules alerts.yml", "test rules alerts.test.yml"],
)
def test_promtool_finds_nothing_wrong(command: str) -> None:
    """The rules, tested with series of their own, and the configuration of Prometheus."""
    done = subprocess.run(
        ["promtool", *command.split()],
        cwd=OPERATIONS / "prometheus",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_query_of_the_dashboard_is_one_to_prometheus(tmp_path: Path) -> None:
    """As rules, since promtool parses those; with the variables replaced, as Grafana does."""
    expressions = [
        expression.replace("$__rate_interval", "1m").replace("$__range", "1h")
        for expression in dashboard_expressions()
    ]
    recorded = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(expressions)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(expressions)} rules found" in done.stdout
