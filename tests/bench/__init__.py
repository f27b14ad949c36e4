"""Benchmarks against other packages and the hardware's limits: ``python -m tests.bench``.

Each ratio is of two measurements that alternate in one run, and so is comparable between machines.
docs/background/speed.md explains the most important rows.
"""
