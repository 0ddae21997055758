"""Fused steps: C++ kernels on a CPU, Triton kernels on a GPU, and the pointer table."""
