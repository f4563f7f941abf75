"""``redsem-async demo`` limits the concurrency of real requests from real processes.

This module imports nothing, because the worker processes run a module of this package and start
faster without imports.
"""
