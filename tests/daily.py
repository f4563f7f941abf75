"""Which tests the daily gate leaves to a release: they have the marker ``release``.

The gate is meant to take five minutes on two cores. What it leaves out runs with
``nox -s release``, and in the sessions that run the tests on other Pythons and servers.
"""

from collections.abc import Iterable

import pytest

# Whole programs, real failovers and clusters, other suites within this one: minutes of it.
LONG = (
    "bench/",
    "checkers/test_journal_under_faults.py",
    "faults/test_cluster.py",
    "faults/test_eviction.py",
    "faults/test_failover.py",
    "faults/test_far_deadlines.py",
    "faults/test_huge_weights.py",
    "faults/test_least_privilege.py",
    "faults/test_orders.py",
    "faults/test_promoted_clocks.py",
    "faults/test_replicas.py",
    "faults/test_served_on.py",
    "integrations/test_demo.py",
    "integrations/test_doctor.py",
    "integrations/test_llm_gateway.py",
    "integrations/test_pytest_plugin.py",
    "integrations/test_taskiq.py",
    "integrations/test_uvicorn.py",
    "test_docs.py",
    "test_examples.py",
)

# The code under test is the same for both classes: the gate takes one of them.
SAME_IN_BOTH_MODES = (
    "behaviour/test_cancellation.py",
    "behaviour/test_errors.py",
    "behaviour/test_group.py",
    "behaviour/test_guardian.py",
    "behaviour/test_hub_life.py",
    "behaviour/test_logging.py",
    "behaviour/test_loss.py",
    "behaviour/test_observer.py",
    "behaviour/test_status.py",
    "behaviour/test_threads.py",
    "behaviour/test_validation.py",
    "faults/test_blocked_loop.py",
    "faults/test_clocks.py",
    "faults/test_detach.py",
    "faults/test_detach_at_maxmemory.py",
    "faults/test_detach_in_an_outage.py",
    "faults/test_dialling.py",
    "faults/test_processes.py",
    "faults/test_secrets.py",
    "faults/test_server.py",
    "integrations/test_asgi.py",
    "integrations/test_fastapi.py",
    "integrations/test_httpx.py",
    "integrations/test_throttle.py",
)

# Exact in real time, or long: by name, whatever their file.
NAMED = (
    "test_every_target_exists",
    "test_every_promise_is_kept_whatever_happens[2]",
    "test_every_promise_is_kept_whatever_happens[3]",
    "test_every_promise_is_kept_whatever_happens[4]",
    "test_every_promise_is_kept_whatever_happens[5]",
    "test_every_promise_is_kept_whatever_happens[6]",
    "test_every_promise_is_kept_whatever_happens[7]",
    "test_nobody_waits_for_long_who_comes_into_an_outage",
    "test_ten_thousand_of_endless_items_fit_into_little_memory",
    "test_thousands_of_permits_at_once",
)


def mark(items: Iterable[pytest.Item]) -> None:
    """Give the marker to what is left to a release."""
    for item in items:
        _, _, path = item.nodeid.partition("::")[0].rpartition("tests/")
        zset = "[zset" in item.name or "-zset" in item.name or "[Semaphore" in item.name
        if (
            path.startswith(LONG)
            or (zset and path.startswith(SAME_IN_BOTH_MODES))
            or item.name.startswith(NAMED)
        ):
            item.add_marker(pytest.mark.release)
