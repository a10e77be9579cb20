"""What is promised about schemas and tools, held against suites that others made.

The schema suites go through audit and engine in this process; bug cases and function calls are asked of served models.
"""
