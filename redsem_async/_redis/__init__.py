"""Redis as a store of semaphores. This is the only folder that imports redis or hiredis.

`backend` has one server, or a cluster of them. `dial` opens a connection with the settings of the
user's client. `connection` sends commands and reads replies. `codec` turns operations into script
calls and raw replies into typed ones, `faults` error replies. `subscriptions` has the channels,
`resp` the bytes, `scripts` the Lua texts, and `acl` the permissions that a Redis user needs.

May import `_protocol` and `_core`, but never `_hub`. Start reading with `connection`.
"""
