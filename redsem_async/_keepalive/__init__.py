"""What keeps permits held. Refreshes them in time, and notices their loss when it could not.

`refresher` has a background task for each held permit.

May import `_hub` and what is below it. It reads the leases that `_hub` keeps, and writes until
when one is trusted, but only the hub makes transitions, in its event loop. Start reading with
`refresher`.
"""
