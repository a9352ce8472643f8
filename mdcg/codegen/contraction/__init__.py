"""Kernels of symmetric contractions."""
