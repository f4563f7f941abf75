"""What keeps permits held: refreshes in time, and their loss when there were none.

`refresher` has a background task for each held permit. `watchdog` has a thread for each node, with
a blocking connection of its own, for semaphores with ``heartbeat="thread"``: it refreshes permits
while the client's event loop is blocked.

May import `_hub` and what is below it. It reads the leases that `_hub` keeps, and writes until
when one is trusted; every transition is made by the hub, in its event loop. Start reading with
`refresher`.
"""
