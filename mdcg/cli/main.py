"""The command lines ``python -m mdcg`` and ``mdcg-patch``.

Each module in `COMMANDS` has a function `add_parser`, which adds one command or several.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .._version import __version__
from . import bench, env, patch, selftest, tools
from ._common import execute

COMMANDS = (env, tools, selftest, bench, patch)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m mdcg``; return the exit code.

    0 ok, 1 something could not be measured, 2 usage, 3 a self-test failed, 4 unsupported file or
    model, 5 missing package, compiler or device.
    """
    return execute(make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="python -m mdcg", description="Tools of mdcg.")
    parser.add_argument("--version", action="version", version=f"mdcg {__version__}")
    parser.set_defaults(run=lambda options: parser.print_help())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands)
    return parser
