"""Times of models on the user's own machine: ``mdcg bench``."""
