"""The prompt cache as a resource with owners: what requests may have of it, what it did, and what becomes of it.

namespaces  whose KV is whose: tenants, salts, isolated keys, and the generation that a flush ends
"""
