"""The command ``python examples/benchmark``; a module of a command has `add_parser`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mdcg.cli._common import execute

from . import batch, comparison, conv, dynamics, models


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        "python examples/benchmark", description="Compare mdcg with other packages."
    )
    parser.set_defaults(program="mdcg bench")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (models, conv, dynamics, batch, comparison):
        module.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code, which is 1 if something could not be measured."""
    return execute(make_parser(), argv)
