"""What the command line and the dashboard share.

`stored` reads what Redis stores of a semaphore, `discovery` finds semaphores by it, `states` says
how one is doing, and `changed` what an operator has changed, in the same words for both.

May import `_api`, `_redis`, `_protocol` and `_core`. Start reading with `discovery`.
"""
