"""One file for each operation, next to the Lua script of the same name.

Each has the batch in which it travels, with what it takes of the `state` and what its reply
changes there. `base` is the batch, `effects` is what replies say besides their answers, and `call`
has the operations that are not batched.

An operation knows nothing of the pipeline that writes it. Start reading with `base` and `release`.
"""
