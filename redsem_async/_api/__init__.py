"""What users hold: the semaphores and their permits.

`semaphore` has the classes, `acquiring` the way of a task to its permit, `permit` the held
permit, `guard` the cancellation of a block whose permit is lost, `entered` the blocks of
``async with semaphore``, `awaitables` what `acquire()` returns, `group` a semaphore for each key,
`status` the dataclasses of `status()`, `client` the making and closing of clients. `bound` is a
semaphore in one event loop.

May import everything but the leaves: here a client is given its backend. Start with `semaphore`.
"""
