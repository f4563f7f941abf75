"""This process's end of the protocol: what is asked of the servers, and what replies mean.

A `hub` has a `pipeline` for each server, connected by `reconnect`, and a `remote_semaphore` for
each name, which is made of: `ledger` (the claims, by where they are), `operations` (what is
written, and what replies mean), `handout` (from a grant to its caller), `deadlines` and `waiters`
(the requests in the queue). `claim` has the table of a claim's states.

May import `_protocol`, `_observers` and `_core`, and never `_redis`: a backend is handed to it.
All input and output is done by `pipeline`; everything below it is synchronous. Imports go from
`hub` down to `claim`. Start reading with `claim`, then `ledger`, then `operations.release`.
"""
