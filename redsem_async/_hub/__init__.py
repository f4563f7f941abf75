"""This process's end of the protocol. It sends commands, and interprets their replies.

`state` has what this process knows of one semaphore, without input and output. `commands` and
`calls` have its commands and what their replies change. `pipeline` does all input and output,
`refresher` keeps held permits, and tasks use `remote_semaphore`.

May import `_protocol`, `_observers` and `_core`, but never `_redis`. A backend is passed in.
Start reading with `model`, then `state`, then `commands`.
"""
