"""The prompt cache as a resource with owners: what requests may have of it, what it did, and what becomes of it.

namespaces  whose KV is whose: tenants, salts, isolated keys, and the generation that a flush ends
segments    where in a rendered prompt its messages and tools stand, and which tokens spell them
"""
