"""What the public modules share, that is, a permit for each request, call or task.

`selector` chooses the semaphore of a call, from one semaphore or from a group with a key, and
`outage` says what the call does while Redis grants no permits. `admission` decides for `asgi` and
`fastapi` whether a request is let in, and what it gets instead. `transport` is that of `httpx` and
`httpx2`. It holds a permit until the response is closed (`outbound`), and has the fleet back off
from an upstream that is overloaded (`overload`).

May import `_api`, `_observers` and `_core`, but no web framework or HTTP client.
Start reading with `selector`.
"""
