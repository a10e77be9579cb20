"""Attention over paged keys and values.

base       the protocol
torch      the reference, for any device
native     C kernels, for the CPU
invariant  for any device, and not a bit depends on the batch
"""
