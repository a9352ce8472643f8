"""``python -m mdcg.bench``, the same as ``python -m mdcg bench``."""

from .cli import main

raise SystemExit(main())
