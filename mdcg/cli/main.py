"""``python -m mdcg env | cache | kernels | selftest | bench | patch | lammps``."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable
from importlib import import_module

from .._version import __version__
from ._common import OK, guarded, heavy_work, terminal

_DESCRIPTION = """\
Tools of mdcg.

  env       versions, compiler, CPU, kernel cache and environment variables
  cache     where compiled kernels are kept, how many, and deleting them
  kernels   compile the kernels of a package beforehand
  selftest  compare the kernels of patched models with a plain computation (needs torch)
  bench     time models, the pair style and the start of a process
  patch     the same as the command mdcg-patch
  lammps    compile the plugin with pair_style mdcg for a LAMMPS of your own
"""


@terminal()
def main(argv: list[str] | None = None) -> int:
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
    parser = argparse.ArgumentParser(
        prog="python -m mdcg",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mdcg {__version__}")
    parser.add_argument("command", choices=_COMMANDS, metavar="COMMAND", help=", ".join(_COMMANDS))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="see COMMAND --help")
    arguments = sys.argv[1:] if argv is None else argv

    def run() -> int:
        if not arguments:
            parser.print_help()
            return OK
        options = parser.parse_args(arguments)
        return _COMMANDS[options.command](options.arguments)

    return guarded("mdcg", run)


def _env(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mdcg env",
        description="Show versions and settings that mdcg finds on this machine.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    from .environment import collect, show

    report = collect()
    print(json.dumps(report, indent=2, ensure_ascii=False) if options.json else show(report))
    return OK


def _cache(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m mdcg cache", description="The kernel cache.")
    parser.add_argument(
        "what", choices=("path", "size", "clear"), help="clear: delete the kernels of this version"
    )
    options = parser.parse_args(argv)
    from ..runtime import cache_dir, cache_size, clear_cache

    kernels, size = cache_size()
    if options.what == "path":
        print(cache_dir())
    elif options.what == "size":
        print(f"{kernels} kernels, {size / 1e6:.1f} MB")
    else:
        clear_cache()  # raises where something is left
        print(f"deleted {kernels} kernels, {size / 1e6:.1f} MB")
    return OK


def _selftest(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mdcg selftest",
        description="Compare the generated kernels with a plain computation: "
        "value, first and second derivatives.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-v", "--verbose", action="store_true", help="log what is compiled")
    options = parser.parse_args(argv)
    with heavy_work(logging.INFO if options.verbose else logging.WARNING):
        from .selftest import run, show

        results = run()
    print(json.dumps(results, indent=2) if options.json else show(results))
    return OK if results["passed"] else 3


def _other(module: str) -> Callable[[list[str]], int]:
    """Return the function ``main`` of a module of this folder, imported when it is used."""
    return lambda argv: int(import_module(f".{module}", __package__).main(argv))


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "env": _env,
    "cache": _cache,
    "kernels": _other("kernels"),
    "selftest": _selftest,
    "bench": _other("bench"),
    "patch": _other("patch"),
    "lammps": _other("lammps"),
}
