"""What touches KV memory or runs per layer: one interface, several implementations."""

from pageport.kernels.batch import RaggedBatch
from pageport.kernels.interface import Kernels
from pageport.kernels.selection import make_kernels

__all__ = ["Kernels", "RaggedBatch", "make_kernels"]
