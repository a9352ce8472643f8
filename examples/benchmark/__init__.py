"""Comparison of mdcg with other packages; ``python examples/benchmark --help``."""
