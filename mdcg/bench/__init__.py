"""Times of models on the user's own machine: ``python -m mdcg bench``."""
