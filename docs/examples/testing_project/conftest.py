"""Loads the fixtures: `redsem_memory`, `redsem_server` and `redsem_redis`."""

pytest_plugins = ["redsem_async.pytest_plugin"]
