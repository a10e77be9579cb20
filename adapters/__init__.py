"""LoRA adapters: manifests, slots and the batched products.

Nothing lives here yet. A request's adapter digest is already part of every cache namespace.
"""
