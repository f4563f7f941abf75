"""One file for each operation, beside the Lua script of the same name.

Each has what is to be written (a queue, or what `_hub.ledger` keeps), the batch in which it
travels, and what its replies mean: for the claims by way of `_hub.ledger`, for a grant by way of
`_hub.handout`. `base` is the batch, `query` the operations that are not batched. `confirm` has no
script: it is the command WAIT.

May import the modules of `_hub` below `remote_semaphore`. An operation does not know the
pipeline that writes it. Start reading with `base` and `release`.
"""
