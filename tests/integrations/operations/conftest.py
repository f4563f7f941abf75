"""The dashboard and the alert rules of docs/metrics.md.

What needs programs and packages beside `.[dev]` runs with ``REDSEM_OPERATIONS=1``, as
`nox -s 'with(operations)'` sets it.
"""

import os

ELSEWHERE = ["test_exported.py", "test_live.py"]
collect_ignore = [] if os.environ.get("REDSEM_OPERATIONS") else ELSEWHERE
