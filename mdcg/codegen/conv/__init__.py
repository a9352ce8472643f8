"""Kernels of convolutions and tensor products."""
