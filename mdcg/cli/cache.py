"""``python -m mdcg cache``: the folder of compiled kernels."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "cache",
        help="where compiled kernels are kept, how many, and deleting them",
        description="The kernel cache.",
    )
    parser.add_argument(
        "what", choices=("path", "size", "clear"), help="clear: delete the kernels of this version"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the folder or its size, or delete it."""
    from ..runtime import cache_dir, cache_size, clear_cache

    count, size = cache_size()
    if options.what == "path":
        print(cache_dir())
    elif options.what == "size":
        print(f"{count} compiled files, {size / 1e6:.1f} MB")
    else:
        clear_cache()  # raises where something is left
        print(f"deleted {count} compiled files, {size / 1e6:.1f} MB")
