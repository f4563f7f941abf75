"""Backends that all semaphores use for a while, in the place of their own."""

from redsem_async._protocol.backend import Backend

STAND_INS: list[Backend] = []
"""The last of them is used. Usually there is none."""
