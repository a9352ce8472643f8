"""``mdcg-patch``, ``mdcg convert`` and ``mdcg info``.

They convert a checkpoint or patch it with generated kernels, check and save it; or describe it.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import installation, printable
from ._common import (
    UsageError,
    execute,
    exit_code,
    heavy_work,
    names,
    positive,
    require_file,
    sentence,
)
from .jobs import CONVERTED, output_problems

_EPILOG = """\
The input is a whole pickled MACE model, as mace_run_train writes it and as MACE's published models
are, NequIP's .ckpt of nequip-train or .nequip.zip package, a .pth checkpoint of SevenNet, or a
.nqx file of Nequix. Loading one, even for --info, runs code in it (but for Nequix): use only files
that you trust. The name of a published model stands for the file that its own package downloads
and keeps: mace-mp-medium,
mace-mpa-0 and mace-off-small of MACE, sevennet-0 and 7net-l3i5 of SevenNet, nequix-mp-1 of
Nequix, nequip.net:GROUP/MODEL:VERSION of NequIP; --info downloads nothing.

The suffix of the output decides what is written:
  OUT.mdcg        the whole network for mdcg's own engine, which needs neither torch nor the
                  package the model was trained with: fastest; energies, forces and stress only.
                  The network and its weights, no code and no pickle; any tool that reads
                  safetensors lists it. For mdcg.MDCGCalculator("OUT.mdcg"), C and LAMMPS.
  OUT.model, .pt  the same PyTorch model with its layers swapped: tools that read MACE models read
                  it if mdcg is installed, and so do torch.load(..., weights_only=False) and
                  mdcg.MDCGCalculator.
  OUT.nequip.zip  the same for a NequIP package; NequIP's own tools load it patched.
OUT.report.json records what was done, how it was checked, and the source file.

mdcg-patch FILE.mdcg --info describes a package, without torch and without running any of it.

exit codes: 0 ok, 2 usage or output not writable, 3 verification failed (nothing is written),
            4 unsupported file, model or layer, 5 missing package, compiler or device
"""


_ABOUT: dict[str, Any] = {
    "description": "Convert a checkpoint of MACE, NequIP, SevenNet or Nequix to an .mdcg package, "
    "or swap its tensor-product layers for generated kernels.",
    "epilog": _EPILOG,
    "formatter_class": argparse.RawDescriptionHelpFormatter,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``mdcg-patch``; return the exit code that ``mdcg-patch --help`` explains."""
    parser = argparse.ArgumentParser(prog="mdcg-patch", **_ABOUT)
    _add_arguments(parser)
    return execute(parser, argv)


def add_convert(commands: Any) -> None:
    """Add the command ``convert``."""
    text = "make a package of a checkpoint, or patch it; compare it with the original"
    _add_arguments(commands.add_parser("convert", help=text, **_ABOUT), "mdcg convert")


def add_info(commands: Any) -> None:
    """Add the command ``info``."""
    text = "what is in a package or checkpoint, and what it can be used for"
    parser = commands.add_parser("info", help=text, description=f"Say {text}.")
    _add_input(parser)
    _add_levels(parser)
    names = ("output", "head", "dtype", "types", "radial", "dispersion")
    unused = dict.fromkeys((*names, "les_factor", "les_own_part"))
    parser.set_defaults(info=True, bundle=(), set=[], run=run, program="mdcg info", **unused)


def add_patch(commands: Any) -> None:
    """Add the command ``patch``."""
    _add_arguments(commands.add_parser("patch", help="the same as mdcg-patch", **_ABOUT))


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input",
        metavar="IN",
        type=Path,
        help="checkpoint (of MACE: .model, .pt; NequIP: .ckpt, .nequip.zip; SevenNet: .pth; "
        "Nequix: .nqx, .pt) or the name of a published model, or package (.mdcg) to be described; "
        "it is never changed",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def _add_levels(parser: argparse.ArgumentParser) -> None:
    level = parser.add_mutually_exclusive_group()
    level.add_argument("-v", "--verbose", action="store_true", help="log more, with all warnings")
    level.add_argument("-q", "--quiet", action="store_true", help="log errors and warnings only")


def _add_arguments(parser: argparse.ArgumentParser, program: str = "mdcg-patch") -> None:
    add = parser.add_argument
    _add_input(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=Path,
        help="where to write (.mdcg; .model or .pt; .nequip.zip)",
    )
    what.add_argument(
        "--info",
        action="store_true",
        help="only tell what is in the file and what can be patched; a checkpoint is loaded for "
        "that, which can run code in it, a package is not",
    )
    add(
        "--head",
        "--modal",
        metavar="NAME",
        help="head to convert, or to make the default of the output; SevenNet's modal",
    )
    add(
        "--dtype",
        "--precision",
        type=dtype_argument,
        metavar="{float32,float64}",
        help="convert the model (default: as it is); fp32 and fp64 are the same",
    )
    add(
        "--device",
        default="cpu",
        help="where to check a patched model: cpu (default) or cuda; packages: cpu",
    )
    add(
        "--allow-partial",
        action="store_true",
        help="write the output even if some layers cannot be patched (not for .mdcg)",
    )
    add("--no-verify", action="store_true", help="do not compare with the original (default: do)")
    add(
        "--atol-forces",
        metavar="X",
        type=positive,
        help="largest allowed difference of forces in eV/Å (default: 1e-8 in float64, in float32 "
        "twice the largest rounding error of the original, and a little of the largest force more)",
    )
    add("--force", action="store_true", help="overwrite OUT if it exists (never IN)")
    package = parser.add_argument_group("options of .mdcg packages")
    package.add_argument(
        "--types",
        metavar="T",
        nargs="+",
        type=names,
        help="elements or types to convert (default: all of the model)",
    )
    package.add_argument(
        "--dispersion",
        metavar="FUNCTIONAL",
        help="also hold the D3 dispersion of a functional, such as pbe, for models that were "
        'trained without one: MDCGCalculator(..., dispersion="pbe"), pair_style mdcg '
        f"dispersion pbe (needs {installation('tad_dftd3')} here, and nothing later)",
    )
    package.add_argument(
        "--bundle",
        metavar="LIST",
        type=_targets,
        default=(),
        help="also write OUT.mdcg-kernels with compiled kernels, for machines without a compiler: "
        "native, x86-64-v2, x86-64-v3, x86-64-v4; of CUDA devices sm_80 (A100; 8.6 and 8.9 too), "
        "sm_90 (H100, H200), sm_100 (B200) and other sm_NN, which needs no such device; separated "
        "by commas",
    )
    radial = package.add_mutually_exclusive_group()
    radial.add_argument(
        "--table",
        dest="radial",
        action="store_const",
        const="table",
        help="evaluate tables of radial networks (the default)",
    )
    radial.add_argument(
        "--exact",
        dest="radial",
        action="store_const",
        const="exact",
        help="evaluate radial networks as they are on CPUs; on GPUs, make their tables as fine as "
        "the tightest limit asks (default: tables whose errors stay below rounding)",
    )
    package.add_argument(
        "--set",
        metavar="NAME=VALUE",
        type=_setting,
        action="append",
        default=[],
        help="default of an input that the model reads of each structure, such as total_charge=0 "
        "(without one, it must be given in each evaluation)",
    )
    package.add_argument(
        "--les-factor",
        metavar="N",
        type=positive,
        help="NequIP-LES: norm factor of the long-range sum in eV Å/e², which checkpoints do not "
        "hold (default: that of the installed les)",
    )
    package.add_argument(
        "--les-own-part",
        choices=("kept", "removed"),
        help="NequIP-LES: whether the interaction of each charge with itself is part of the energy "
        "(default: as in the installed les)",
    )
    _add_levels(parser)
    add("--version", action="version", version=f"{program} {__version__}")
    parser.set_defaults(
        run=run,
        program=program,
        if_stopped=": nothing was written and no temporary file is left",
        refuse=parser.error,
    )


def dtype_argument(text: str) -> str:
    """Parse the name of a precision."""
    from ..problem.text import dtype_of

    try:
        return dtype_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _targets(text: str) -> tuple[str, ...]:
    targets = tuple(dict.fromkeys(names(text)))
    if not targets:
        raise argparse.ArgumentTypeError(
            f"{text!r} names no target, expected such as x86-64-v3,sm_90"
        )
    return targets


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        number = float(value)
        return name.strip(), int(number) if number.is_integer() else number
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"--set is {text!r}, expected NAME=VALUE with a number"
        ) from error


def run(options: argparse.Namespace) -> None:
    """Describe the input, or write the output."""
    _check_arguments(options)
    try:
        _check_paths(options)
        result, text = _work(options)
    except Exception as error:
        partial: tuple[dict[str, Any], str] = getattr(error, "result", ({}, ""))
        result, text = partial
        code = exit_code(error)
        if code is not None and (text or options.json):
            about = {"exit_code": code, "message": sentence(error)}
            with suppress(BrokenPipeError):
                _print(options, {**result, "error": about}, text)
        raise
    _print(options, result, text)


def _check_arguments(options: argparse.Namespace) -> None:
    """Refuse combinations of options that argparse does not refuse."""
    if options.types is not None:
        options.types = tuple(chain(*options.types))
    to_package = options.output is not None and options.output.suffix == CONVERTED
    names = ("types", "bundle", "radial", "set", "dispersion", "les_factor", "les_own_part")
    given = [name for name in names if getattr(options, name)]
    if given and not to_package:
        name = "table or --exact" if given[0] == "radial" else given[0].replace("_", "-")
        options.refuse(f"--{name} is an option of .mdcg packages: name the output OUT.mdcg")
    inputs = [name for name, _ in options.set]
    if len(set(inputs)) < len(inputs):
        options.refuse(f"--set names {max(inputs, key=inputs.count)} twice, expected one value")
    if to_package and options.allow_partial:
        options.refuse("--allow-partial does not apply to .mdcg packages, which have every layer")
    if to_package and options.device != "cpu":
        options.refuse("--device does not apply to .mdcg packages, which are checked on the CPU")


def _check_paths(options: argparse.Namespace) -> None:
    from ..runtime.cache import is_name

    options.is_name = is_name(str(options.input))
    if not options.is_name:
        require_file(options.input)
    _check_output(options)


def _check_output(options: argparse.Namespace) -> None:
    options.problems = []
    if options.output is not None:
        options.problems = output_problems(
            options.input, options.output, force=options.force, bundle=bool(options.bundle)
        )
    # with these options the model is loaded first, so that one message lists all mistakes
    if options.problems and not (options.head or options.types):
        raise UsageError("; ".join(options.problems))


def _work(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from ..package.file import is_package

    if is_package(options.input):
        from .package_info import describe_package

        if not options.info:
            raise UsageError(
                f"{options.input} is a package already: give the checkpoint it was made from, or "
                f"ask what is in it, mdcg info {options.input}"
            )
        return describe_package(options.input)
    level = logging.WARNING if options.quiet else logging.INFO
    with heavy_work(logging.DEBUG if options.verbose else level):
        if options.is_name:
            from ..patch.model_names import find_checkpoint

            options.input = find_checkpoint(str(options.input), download=not options.info)[1]
            _check_output(options)
        logging.getLogger("mdcg").info("loading %s", printable(options.input.name))
        if options.output is not None and options.output.suffix == CONVERTED:
            from .jobs import convert

            return convert(options)
        from .jobs import describe, run

        return describe(options) if options.info else run(options)


def _print(options: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    if options.json:
        text = json.dumps(result, indent=2, ensure_ascii=False)
    print(text)
