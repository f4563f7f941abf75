"""``redsem-async demo``: limits the concurrency of real requests from real processes.

This module imports nothing, because the demo's processes run modules of this package and start
faster without imports.
"""
