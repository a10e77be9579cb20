"""C kernels for the CPU, built on the machine they run on or, for images, before.

kernels.c  the source: one file, no torch headers
build      source to shared library, once per machine
prebuilt   the same beforehand, for machines that have no compiler
kernels    its functions, typed
layers     `engine.layers.Layers` on top of it
"""
