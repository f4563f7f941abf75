"""What a permit costs, beside what the same trips cost without one."""
