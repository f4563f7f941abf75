"""``redsem-async doctor``: the checks of a server, of permissions, and of a real hand-over."""
