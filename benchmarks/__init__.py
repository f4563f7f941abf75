"""Benchmarks: the cost of a permit, compared with other libraries and with baselines."""
