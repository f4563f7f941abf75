"""The dashboard and the alert rules of docs/metrics.md.

What needs promtool runs with ``REDSEM_OPERATIONS=1``, as `nox -s 'with(operations)'` sets it.
"""

import os

collect_ignore = [] if os.environ.get("REDSEM_OPERATIONS") else ["test_exported.py"]
