"""The rules and the queries by promtool, and the dashboard by the types of Grafana."""

import json
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.operations.names import DASHBOARD, OPERATIONS, dashboard_expressions


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The values within a value, by where they are."""
    parts: dict[type, Callable[[Any], Any]] = {dict: dict[str, Any].items, list: enumerate}
    if type(value) not in parts:
        return {path: value}
    found: dict[str, Any] = {}
    for name, part in parts[type(value)](value):
        found |= leaves(part, f"{path}.{name}")
    return found


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


def test_the_dashboard_is_one_by_the_types_of_grafana() -> None:
    """They drop what they do not know: nothing is dropped; defaults are added."""
    import_module("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    model = import_module("grafana_foundation_sdk.models.dashboard").Dashboard
    encoder = import_module("grafana_foundation_sdk.cog.encoder").JSONEncoder
    written = json.loads(DASHBOARD.read_text())
    read = json.loads(encoder(sort_keys=True).encode(model.from_json(written)))
    assert leaves(written).items() - leaves(read).items() == set()


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
