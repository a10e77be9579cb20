"""A seeded simulation of scheduler, prefix cache and page pool, and the planted bugs that it has to catch.

world      one run: random operations and faults, every invariant after each
mutants    the planted bugs
__main__   `python -m tests.simulation [SEED] [--seeds N]`
"""
