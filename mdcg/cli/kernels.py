"""``python -m mdcg kernels``: compiled kernels of a package, in the cache or in a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ._common import UsageError, require_package

_EPILOG = """\
Kernels are compiled when a package is first evaluated on a machine. This command does it
beforehand, for example on the login node of a cluster whose compute nodes have no compiler:

  python -m mdcg kernels water.mdcg --target native
  python -m mdcg kernels water.mdcg --target sm_90 --target x86-64-v3 --output water.mdcg-kernels

Without --output they go into the cache of kernels, where they are found. A file is used where it
is named: kernels="water.mdcg-kernels" in Python, "pair_style mdcg kernels water.mdcg-kernels" in
LAMMPS. It holds machine code that runs: name only files that you, or people you trust, have made.
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "kernels",
        help="compile the kernels of a package beforehand",
        description="Compile the kernels of a package and print where they are.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("package", type=Path, metavar="FILE.mdcg")
    add(
        "--target",
        action="append",
        required=True,
        help="native (this CPU), x86-64-v2, -v3 or -v4, or sm_80, sm_90 and the like for CUDA "
        "devices; may be given several times",
    )
    add("-o", "--output", type=Path, metavar="FILE.mdcg-kernels", help="default: the cache")
    add("--again", action="store_true", help="compile kernels again that are in the cache")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Compile the kernels and print where they are."""
    from ..package.file import write_file
    from ..package.kernel_file import SUFFIX, cache_kernels, check_targets, compile_kernels

    if options.output is not None and options.output.suffix != SUFFIX:
        raise UsageError(f"--output is {options.output}, expected a name that ends in {SUFFIX}")
    require_package(options.package)
    check_targets(options.target)
    if options.output is None:
        for target in options.target:
            print(cache_kernels(options.package, target, again=options.again), flush=True)
        return
    data = compile_kernels(options.package, options.target, again=options.again)
    write_file(options.output, data)
    print(options.output)
