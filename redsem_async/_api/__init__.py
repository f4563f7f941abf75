"""What users hold: the semaphores and their permits.

May import everything but the leaves: here a client is given its backend. Start with `semaphore`.
"""
