"""Commands: ``mdcg-patch`` and ``python -m mdcg``; heavy imports wait for the arguments."""
