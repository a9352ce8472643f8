"""Commands: ``mdcg`` and ``mdcg-patch``; heavy imports wait for the arguments."""
