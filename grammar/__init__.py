"""Structured output: the contract a schema makes and the masks that keep it.

Nothing lives here yet. The gateway refuses `response_format`, `tools` and their kin with a 400 until this package
can honour them.
"""
