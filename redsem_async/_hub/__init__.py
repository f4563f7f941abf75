"""This process's end of the protocol: what is asked of the servers, and what replies mean.

One semaphore is a state machine without input and output: `state` has what this process knows of
it, `machine` its verbs, `commands` its commands and what their replies change. `pipeline` does
all input and output; `remote_semaphore` is what tasks use.

May import `_protocol`, `_observers` and `_core`, and never `_redis`: a backend is handed to it.
Start reading with `request` and `lease`, then `state`, then `commands.release`.
"""
