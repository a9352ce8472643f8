"""The command line ``mdcg``, which ``python -m mdcg`` runs too.

`COMMANDS` adds them in the order of their list.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .._version import __version__
from . import bench, env, patch, run, selftest, tools
from ._common import execute

COMMANDS = (
    *(patch.add_convert, patch.add_info, run.add_parser, tools.add_kernels, bench.add_parser),
    *(env.add_parser, selftest.add_parser, tools.add_cache, tools.add_lammps, patch.add_patch),
)
# Commands that do nothing without arguments: alone, they print their help.
_NEED_ARGUMENTS = ("convert", "info", "kernels", "patch", "run")
_EPILOG = """\
The first steps with a checkpoint of MACE, NequIP, SevenNet or Nequix:

  mdcg info water.model                       what it is, and what it can be used for
  mdcg convert water.model -o water.mdcg      a package, compared with the original
  mdcg convert mace-mpa-0 -o mpa.mdcg         the same with a published model
  mdcg run water.mdcg water.xyz --md nvt --temperature 300 --steps 1000

mdcg COMMAND --help explains a command. The documents are in docs/usage/ of the repository.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``mdcg``; return the exit code.

    0 ok, 1 something could not be computed, 2 usage, 3 a comparison failed, 4 unsupported file or
    model, 5 missing package, compiler or device.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) == 1 and arguments[0] in _NEED_ARGUMENTS:
        arguments.append("--help")
    return execute(make_parser(), arguments)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="mdcg",
        description="Convert, run and time MACE, NequIP, SevenNet and Nequix potentials.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mdcg {__version__}")
    parser.set_defaults(run=lambda options: parser.print_help())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command(commands)
    return parser
