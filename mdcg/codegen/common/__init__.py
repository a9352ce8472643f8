"""What all generators share: expressions, lowering, names of kernels, and printing."""
