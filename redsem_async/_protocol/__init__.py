"""What a hub and a store of semaphores say to each other. Redis and memory speak the same.

A hub sends operations (`operations`, `status`), gets one reply for each (`replies`, or `errors`),
and push messages in between (`pushes`). `hub_info` describes the hub itself. `backend` has the
interfaces between the two. `Backend`, `Node` and `Link` are the store's, `Listener` is the hub's.

May import `_core` only. It knows no event loop and no clock. Durations pass through it, but
instants do not. Start reading with `operations`.
"""
