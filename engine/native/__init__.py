"""C kernels for the CPU, built on the machine they run on.

kernels.c  the source: one file, no torch headers
build      source to shared library, once per machine
kernels    its functions, typed
layers     `engine.layers.Layers` on top of it
"""
