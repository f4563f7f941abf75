"""What the public modules share, that is, a permit for each request, call or task.

`selector` chooses the semaphore of a call, from one semaphore or from a group with a key.
`admission` decides for `asgi` and `fastapi` whether a request is let in, and what it gets
instead. `outbound` holds a permit for `httpx` and `httpx2` until the response is closed.
`discovery` finds semaphores in Redis, for the command line and the dashboard.

May import `_api`, `_redis` and `_core`, but no web framework or HTTP client.
Start reading with `selector`.
"""
