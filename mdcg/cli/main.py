"""The command lines ``python -m mdcg`` and ``mdcg-patch``.

A command is a module of this folder with `add_parser` and `run`, and an entry in `COMMANDS`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .._version import __version__
from . import bench, cache, env, kernels, lammps, patch, selftest
from ._common import execute

COMMANDS = (env, cache, kernels, selftest, bench, patch, lammps)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m mdcg``.

    Parameters
    ----------
    argv : list of str, optional
        Arguments, default ``sys.argv[1:]``.

    Returns
    -------
    int
        Exit code: 0 ok, 1 something could not be measured, 2 usage, 3 a self-test failed,
        4 unsupported file or model, 5 missing package, compiler or device.
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
