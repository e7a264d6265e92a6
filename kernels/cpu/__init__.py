"""Kernels for the CPU: Numba where memory is the limit, torch's matrix products where arithmetic is."""
