"""This process's end of the protocol. It sends commands, and interprets their replies.

One semaphore is a state machine without input and output. `state` has what this process knows of
it, `machine` its verbs, and `commands` its commands and what their replies change. `pipeline` does
all input and output, `refresher` keeps held permits, and tasks use `remote_semaphore`.

May import `_protocol`, `_observers` and `_core`, but never `_redis`. A backend is passed in.
Start reading with `request` and `lease`, then `state`, then `commands.release`.
"""
