"""``python -m mdcg``, the same program as the command ``mdcg``."""

from __future__ import annotations

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
