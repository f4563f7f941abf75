"""The checks of ``redsem-async doctor``, of a server, permissions, and a real hand-over."""
