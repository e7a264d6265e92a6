"""Kernels in the Triton language, for NVIDIA and AMD GPUs; under TRITON_INTERPRET=1 they run on the CPU, slowly."""
