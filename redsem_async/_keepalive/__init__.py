"""What keeps permits held. Refreshes them in time, and notices their loss when it could not.

`refresher` has a background task for each held permit. `watchdog` has a thread for each node, with
a blocking connection of its own, for semaphores with ``heartbeat="thread"``. The thread refreshes
permits while the client's event loop is blocked.

May import `_hub` and what is below it. It reads the leases that `_hub` keeps, and writes until
when one is trusted, but only the hub makes transitions, in its event loop. Start reading with
`refresher`.
"""
