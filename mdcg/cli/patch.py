"""``mdcg-patch``: put generated kernels into a checkpoint, check it, and save it."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from .._version import __version__
from ._common import OK, UsageError, exit_code, heavy_work, sentence
from .files import check_output

__all__ = ["main"]

_EPILOG = """\
The input is a whole pickled MACE model, as mace_run_train writes it and as MACE's published models
are, or NequIP's: a .ckpt of nequip-train or a .nequip.zip package. Loading them can run code: patch
files you trust only.

The output is the same PyTorch model with its layers swapped. Where mdcg is installed it loads with
torch.load(..., weights_only=False), in mdcg.MDCGCalculator and in everything that takes a MACE
model. A package gives a package (OUT.nequip.zip), which NequIP's own tools load patched.
OUT.report.json tells what was patched, how it was checked, and from which file.

exit codes: 0 ok, 2 usage, 3 verification failed (nothing is written),
            4 unsupported file, model or layer, 5 missing package, compiler or device
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mdcg-patch",
        description="Swap the tensor-product layers of a MACE or NequIP checkpoint for generated "
        "kernels.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "input",
        metavar="IN",
        type=Path,
        help="checkpoint (.model, .pt, .ckpt, .nequip.zip); it is never changed",
    )
    add(
        "-o",
        "--output",
        metavar="OUT",
        type=Path,
        help="where to write (.model or .pt, .nequip.zip)",
    )
    add("--info", action="store_true", help="only tell what is in the file and what can be patched")
    add("--json", action="store_true", help="print one JSON object instead of text")
    add("--head", metavar="NAME", help="head to check and to make the default of the output")
    add("--dtype", choices=("float32", "float64"), help="convert the model (default: as it is)")
    add("--device", default="cpu", help="where to check it: cpu (default) or cuda")
    add(
        "--allow-partial",
        action="store_true",
        help="write the output even if some layers cannot be patched",
    )
    add("--no-verify", action="store_true", help="do not compare with the original (default: do)")
    add(
        "--atol-forces",
        metavar="X",
        type=_positive,
        help="largest allowed difference of forces in eV/Å (default: 1e-8 in float64; in float32 "
        "twice the original's own rounding error)",
    )
    add("--force", action="store_true", help="overwrite OUT if it exists (never IN)")
    level = parser.add_mutually_exclusive_group()
    level.add_argument("-v", "--verbose", action="store_true", help="log more, with all warnings")
    level.add_argument("-q", "--quiet", action="store_true", help="log errors only")
    add("--version", action="version", version=f"mdcg-patch {__version__}")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv : list of str, optional
        Arguments, default ``sys.argv[1:]``.

    Returns
    -------
    int
        Exit code; see ``mdcg-patch --help``.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if not options.info and options.output is None:
        parser.error("name the output with -o OUT, or ask for --info")
    if options.info and options.output is not None:
        parser.error("--info writes nothing: leave out -o or --info")
    level = logging.INFO
    if options.verbose or options.quiet:
        level = logging.DEBUG if options.verbose else logging.ERROR
    try:
        _check_paths(options)
        result, text = _work(options, level)
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        failed: dict[str, Any] = {"error": {"exit_code": code, "message": sentence(error)}}
        partial = getattr(error, "result", None)
        if partial is not None:
            result, text = partial
            _print(options, {**result, **failed}, text)
        elif options.json:
            _print(options, failed, "")
        print(f"mdcg-patch: {sentence(error)}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        print("mdcg-patch: interrupted, nothing was written", file=sys.stderr)
        return 130
    _print(options, result, text)
    return OK


def _check_paths(options: argparse.Namespace) -> None:
    if not options.input.exists():
        raise UsageError(f"{options.input}: no such file")
    if not options.input.is_file():
        raise UsageError(f"{options.input} is not a file: give the checkpoint itself")
    if not os.access(options.input, os.R_OK):
        raise UsageError(f"{options.input} cannot be read: check its permissions")
    if options.output is not None:
        check_output(options.input, options.output, force=options.force)


def _work(options: argparse.Namespace, level: int) -> tuple[dict[str, Any], str]:
    with heavy_work(level):
        from .patch_job import describe, run

        return describe(options) if options.info else run(options)


def _print(options: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    if options.json:
        text = json.dumps(result, indent=2, ensure_ascii=False)
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))  # not every terminal knows Å


if __name__ == "__main__":
    sys.exit(main())
