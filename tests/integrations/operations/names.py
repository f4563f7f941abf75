"""What the dashboard and the alert rules ask for, and what the package exports.

The names are those that Prometheus gives them: with the unit, and `_total` for a counter.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader, Metric, Sum

OPERATIONS = Path(__file__).parents[3] / "docs" / "examples" / "operations"
DASHBOARD = OPERATIONS / "grafana" / "dashboard.json"
ALERTS = OPERATIONS / "prometheus" / "alerts.yml"

ADDED_BY_PROMETHEUS = {"instance", "le"}
NOT_CAUSED = {"BackendUnavailable"}  # a MemoryBackend is never away
SELECTED = re.compile(r"\b(redsem_\w+)\s*\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!=|=)\s*"([^"]*)"')
NAME = re.compile(r"\b(?:redsem_\w+|error_type)\b")
GROUPED = re.compile(r"\bby\s*\(([^)]*)\)")

Exported = dict[str, dict[str, set[str]]]
"""The values of each label, for each name of a series."""


def dashboard_expressions() -> list[str]:
    """The queries of all panels."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def rules() -> str:
    """The rules as they stand, but for their comments and texts: those are no expressions."""
    lines = ALERTS.read_text().splitlines()
    ignored = ("#", "summary:", "description:")
    return "\n".join(line for line in lines if not line.strip().startswith(ignored))


def series_of(metric: Metric) -> list[str]:
    """The names of the series that Prometheus makes of a metric."""
    name = metric.name.replace(".", "_")
    unit = {"s": "_seconds"}.get(metric.unit or "", "")
    if isinstance(metric.data, Histogram):
        return [f"{name}{unit}_{suffix}" for suffix in ("bucket", "count", "sum")]
    counts = isinstance(metric.data, Sum) and metric.data.is_monotonic
    return [f"{name}{unit}{'_total' if counts else ''}"]


def labels_of(points: Iterable[Any]) -> dict[str, set[str]]:
    labels: defaultdict[str, set[str]] = defaultdict(set)
    for point in points:
        for name, value in point.attributes.items():
            labels[name.replace(".", "_")].add(str(value))
    return dict(labels)


def exported_by(reader: InMemoryMetricReader) -> Exported:
    data = reader.get_metrics_data()
    return {
        series: labels_of(metric.data.data_points)
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for series in series_of(metric)
    }


def unknown(expression: str, exported: Exported) -> list[str]:
    """What an expression asks for, and what is not exported."""
    labels = {label for those in exported.values() for label in those}
    found = [name for name in NAME.findall(expression) if name not in {*exported, *labels}]
    for grouped in GROUPED.findall(expression):
        names = {name.strip() for name in grouped.split(",")}
        found += sorted(names - labels - ADDED_BY_PROMETHEUS)
    for series, selector in SELECTED.findall(expression):
        for label, operator, value in MATCHER.findall(selector):
            values = exported.get(series, {}).get(label)
            if values is None:
                found.append(f"{series}{{{label}}}")
            elif operator != "!=" and value != "$semaphore":
                wanted = set(value.split("|") if operator == "=~" else [value])
                found += sorted(wanted - values - NOT_CAUSED)
    return found
