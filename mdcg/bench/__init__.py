"""Timing of layers and whole models, side by side with other implementations."""
