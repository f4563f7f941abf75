"""``redsem-async doctor``: what may keep semaphores from working on this Redis."""
