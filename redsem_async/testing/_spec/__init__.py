"""The executable specification of the scripts, which is the protocol in memory.

One `Specification` is one semaphore. It has no clock and does no input or output, so each call is
given the time. `MemoryBackend` is built on it. The tests run it and the Lua scripts with the same
calls and compare replies, push messages and state. The simulation and the model check run on it.

`records` has what is stored, and `state` the rules that all modes share, like the Lua prelude.
`leases` and `status` have the operations that serve no waiters. `base` carries out all operations.
`serving` has the requests that wait, `queue` the operations on them, and `passing` and `keyed`
what differs.

May import `_protocol` and `_core` only. Start reading with `records`, then `base`, `serving`
and `queue`.
"""
