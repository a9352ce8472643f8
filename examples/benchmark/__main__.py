"""``python examples/benchmark COMMAND``: comparison with other packages, see README.md."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmark.cli import main  # noqa: E402

raise SystemExit(main())
