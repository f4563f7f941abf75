"""Observers and their events. May import `_core` only. Start reading with `notifier`."""
