"""The dashboard and the alert rules ask for metrics that the package exports."""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.harness.wait import until
from tests.integrations.operations.names import (
    NAME,
    dashboard_expressions,
    exported_by,
    rules,
    unknown,
)
from tests.integrations.operations.telemetry import every_metric


async def test_the_dashboard_and_the_rules_ask_for_what_is_exported() -> None:
    """A panel or an alert on a name that nothing exports is silent for ever."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    async with every_metric(provider):
        await until(lambda: "redsem_status_limit" in exported_by(reader))
        exported = exported_by(reader)
    provider.shutdown()
    expressions = [*dashboard_expressions(), rules()]
    assert all(NAME.search(expression) for expression in expressions)
    assert [unknown(expression, exported) for expression in expressions] == [
        [] for _ in expressions
    ]
    # ... and each metric is on the dashboard, but for what only `reap()` counts.
    shown = set(NAME.findall(" ".join(dashboard_expressions())))
    assert {name for name in exported if not name.endswith(("_sum", "_count", "_bucket"))} <= shown
