"""Compile, cache, load and launch generated text; knows nothing of irreps."""
