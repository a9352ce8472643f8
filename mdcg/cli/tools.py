"""The commands ``kernels``, ``lammps`` and ``cache`` of ``mdcg``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ._common import UsageError, require_package

_KERNELS_EPILOG = """\
Kernels are compiled when a package is first evaluated on a machine. This command does it
beforehand, for example on the login node of a cluster whose compute nodes have no compiler:

  mdcg kernels water.mdcg --target native
  mdcg kernels water.mdcg --target sm_90 --target x86-64-v3 --output water.mdcg-kernels

Without --output they go into the cache of kernels, where they are found. A file is used where it
is named: kernels="water.mdcg-kernels" in Python, "pair_style mdcg kernels water.mdcg-kernels" in
LAMMPS. It holds machine code that runs: name only files that you, or people you trust, have made.
"""

_LAMMPS_EPILOG = """\
The LAMMPS of the Python package lammps needs none of this: where it is installed beside mdcg, its
command lmp knows pair_style mdcg. For your own LAMMPS, built as a shared library with the package
PLUGIN, give its headers, and load the file in the input:

  mdcg lammps --headers ~/lammps/src -o mdcgplugin.so
  plugin load ./mdcgplugin.so      (in the input; or set LAMMPS_PLUGIN_PATH to its folder)

When it is loaded, the plugin checks that it was compiled for exactly that LAMMPS.
"""


_FORM = argparse.RawDescriptionHelpFormatter


def add_kernels(commands: Any) -> None:
    """Add the command ``kernels``."""
    parser = commands.add_parser(
        "kernels",
        help="compile the kernels of a package beforehand",
        description="Compile the kernels of a package and print where they are.",
        epilog=_KERNELS_EPILOG,
        formatter_class=_FORM,
    )
    add = parser.add_argument
    add("package", type=Path, metavar="FILE.mdcg")
    add(
        "--target",
        action="append",
        required=True,
        help="native (this CPU), x86-64-v2, -v3 or -v4, sm_80, sm_90 and the like for CUDA "
        "devices, gfx90a and the like for AMD's; may be given several times",
    )
    add("-o", "--output", type=Path, metavar="FILE.mdcg-kernels", help="default: the cache")
    add("--again", action="store_true", help="compile kernels again that are in the cache")
    parser.set_defaults(run=_run_kernels)


def add_lammps(commands: Any) -> None:
    """Add the command ``lammps``."""
    parser = commands.add_parser(
        "lammps",
        help="compile the plugin with pair_style mdcg for a LAMMPS of your own",
        description="Compile the LAMMPS plugin and print where it is.",
        epilog=_LAMMPS_EPILOG,
        formatter_class=_FORM,
    )
    add = parser.add_argument
    add("--headers", type=Path, metavar="DIR", help="LAMMPS's src, or include/lammps")
    add("--version", type=int, metavar="YYYYMMDD", help="of the headers, if no version.h is there")
    add("--mpi", type=Path, metavar="DIR", help="folder with mpi.h (default: mpich's or mpicxx's)")
    add("--bigbig", action="store_true", help="LAMMPS was built with LAMMPS_BIGBIG")
    add("-o", "--output", type=Path, metavar="FILE", help="where to write (default: the cache)")
    parser.set_defaults(run=_run_lammps)


def add_cache(commands: Any) -> None:
    """Add the command ``cache``."""
    text = "list or delete compiled kernels and converted models"
    parser = commands.add_parser("cache", help=text, description="List or delete the cache.")
    parser.add_argument(
        "what",
        nargs="?",
        choices=("path", "size", "clear"),
        help="path: print its folder; size: how many files it has; clear: delete what this version "
        "of mdcg keeps; default: all of it",
    )
    parser.set_defaults(run=_run_cache)


def _run_cache(options: argparse.Namespace) -> None:
    """Print the folder or its size, or delete it."""
    from ..runtime.cache import cache_dir, cache_size, cached_models, clear_cache

    count, size = cache_size()
    text = f"{count} compiled files, {size / 1e6:.1f} MB"
    sizes = {path.name: path.stat().st_size / 1e6 for path in cached_models()}
    if sizes:
        text += f"; {len(sizes)} converted models, {sum(sizes.values()):.1f} MB"
    if options.what is None:
        lines = [f"{cache_dir()}: {text} ('mdcg cache clear' deletes them)"]
        text = "\n".join([*lines, *(f"  {name}  {size:.1f} MB" for name, size in sizes.items())])
    elif options.what == "path":
        text = str(cache_dir())
    elif options.what == "clear":
        clear_cache()  # raises if something is left
        text = f"deleted {text}"
    print(text)


def _run_kernels(options: argparse.Namespace) -> None:
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


def _run_lammps(options: argparse.Namespace) -> None:
    """Compile the plugin and print where it is."""
    from .. import lammps_plugin

    found = lammps_plugin.find_lammps(
        options.headers, version=options.version, mpi=options.mpi, bigbig=options.bigbig
    )
    try:
        print(lammps_plugin.build(found, options.output, keep=True))
    except ValueError as error:
        raise UsageError(str(error)) from error
