"""The command ``python -m mdcg bench conv|model``; the only place of this room that prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import MdcgError
from . import report
from .cases import DEFAULT_CASES, find_cases
from .jobs import DTYPES, MODEL_IMPLS, NEQUIP_PRESETS, PASSES, SIZES, ConvJob, ModelJob
from .peers import PEERS, choose_peers
from .process import ALLOCATORS
from .runner import (
    Settings,
    available_cores,
    conv_section,
    document,
    machine_section,
    model_section,
)
from .systems import ORDERS, make_system

__all__ = ["main"]

_CONV_HELP = """\
Time one convolution layer: gather, tensor product, sum over the edges of each receiver. The
implementations run in turns in one process; their results are compared with float64; peak memory is
measured in one process per implementation. Passes: fwd (value), fwd+bwd (gradients of all three
inputs), fwd+bwd+dbl (gradients of the squared norm of the first two gradients)."""

_MODEL_HELP = """\
Time energy and forces of a model, as it is and after mdcg.patch_model, in turns in one
process. The neighbour list is made before and not counted. MODEL is small, medium or large (random
weights, 89 elements, the shapes of MACE-MP-0), nequip-s, -m, -l or -xl (random weights, 87
elements, the shapes of NequIP's foundation models, stress included) or a checkpoint file."""


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _list(text))


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mdcg bench",
        description="Time mdcg side by side with other implementations.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="conv|model")
    form = argparse.RawDescriptionHelpFormatter
    conv = commands.add_parser(
        "conv", help="one layer", description=_CONV_HELP, formatter_class=form
    )
    conv.add_argument(
        "--case", type=_list, action="append", metavar="NAME,...",
        help=f"layer shapes: names, wildcards or all (default {','.join(DEFAULT_CASES)})",
    )  # fmt: skip
    conv.add_argument(
        "--passes", type=_list, default=PASSES, metavar="PASS,...", help=f"of {', '.join(PASSES)}"
    )
    conv.add_argument(
        "--order",
        choices=ORDERS,
        default="receiver",
        help="how edges are sorted (default receiver)",
    )
    conv.add_argument("--no-startup", action="store_true", help="skip compile and load times")
    conv.add_argument("--list", action="store_true", help="list layer shapes and implementations")
    model = commands.add_parser(
        "model", help="a whole model", description=_MODEL_HELP, formatter_class=form
    )
    model.add_argument("model", nargs="*", metavar="MODEL", help="default: medium")
    model.add_argument("--head", help="head of a model with several")
    for command in (conv, model):
        _common(command)
    return parser


def _common(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--impl", type=_list, metavar="NAME,...", help="implementations (default: e3nn,mdcg)")
    add("--dtype", type=_list, metavar="DTYPE,...", help=f"of {', '.join(DTYPES)}")
    add("--system", default="water", metavar="NAME|FILE", help="water, carbon or a structure file")
    add("--atoms", type=_counts, metavar="N,...", help="sizes (default: water 192, carbon 1000)")
    add("--device", choices=("cpu",), default="cpu", help="where to run (default cpu)")
    add("--repeats", type=_positive, default=10, metavar="N", help="samples (default 10)")
    add("--warmup", type=_positive, default=3, metavar="N", help="untimed calls (default 3)")
    add("--threads", type=_positive, metavar="N", help="default: all cores of this process")
    add("--malloc", choices=ALLOCATORS, default="tuned", help="glibc settings of the timed process")
    add("--seed", type=int, default=0, help="of inputs and random weights (default 0)")
    add("--no-check", action="store_true", help="skip the comparison with float64")
    add("--no-memory", action="store_true", help="skip peak memory")
    add("--json", metavar="FILE", help="write all numbers")
    add("--plot", metavar="FILE", help="draw the times; needs matplotlib")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after ``bench``; default: those of the process.

    Returns
    -------
    int
        0: done. 1: something could not be measured. 2: the arguments make no sense.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        _validate(options)
        if options.command == "conv" and options.list:
            _print_list()
            return 0
        if options.plot:
            report.require_matplotlib()
        return _bench_conv(options) if options.command == "conv" else _bench_model(options)
    except ValueError as error:
        print(f"mdcg bench: {error}", file=sys.stderr)
        return 2
    except MdcgError as error:
        print(f"mdcg bench: {error}", file=sys.stderr)
        return 1


def _validate(options: argparse.Namespace) -> None:
    """Refuse what a process would only find out after minutes."""
    checks: list[tuple[str, Sequence[str], Sequence[str]]] = [
        ("dtype", options.dtype or (), DTYPES)
    ]
    if options.command == "conv":
        checks.append(("pass", options.passes, PASSES))
        options.case = find_cases(sum(options.case or [], ()) or DEFAULT_CASES)
    for name in options.model if options.command == "model" else ():
        known = (*SIZES, *NEQUIP_PRESETS)
        if name not in known and not Path(name).is_file():
            raise ValueError(
                f"model {name!r} is neither {', '.join(known)} nor a file: check the path"
            )
    for name, values, allowed in checks:
        for value in values:
            if value not in allowed:
                raise ValueError(
                    f"{name} {value!r} is unknown, expected one of {', '.join(allowed)}"
                )
    for target in (options.json, options.plot):
        if target and not Path(target).absolute().parent.is_dir():
            raise ValueError(f"the folder of {target} does not exist: make it first")
    for atoms in options.atoms or (None,):
        make_system(options.system, atoms)


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(
        threads=options.threads or available_cores(),
        allocator=options.malloc,
        memory=not options.no_memory,
        startup=options.command == "conv" and not options.no_startup,
    )


def _shared(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "system": options.system,
        "device": options.device,
        "repeats": options.repeats,
        "warmup": options.warmup,
        "seed": options.seed,
        "check": not options.no_check,
    }


def _bench_conv(options: argparse.Namespace) -> int:
    names = tuple(peer.name for peer in choose_peers(options.impl, options.device))
    settings, dtypes = _settings(options), options.dtype or ("float32",)
    shared = {
        **_shared(options),
        "impls": names,
        "passes": tuple(options.passes),
        "order": options.order,
    }
    result = document("conv", settings, {**shared, "settings": asdict(settings)})
    _progress("measuring the machine")
    rates = result["machine"]["rates"] = machine_section(settings, dtypes)
    print(report.header(result), flush=True)
    for case in options.case:
        for dtype in dtypes:
            for atoms in options.atoms or (None,):
                job = ConvJob(case=case.name, dtype=dtype, atoms=atoms, **shared)
                section = conv_section(job, settings, rates, _progress)
                _take(result, section)
                _show(report.conv_table(section))
    return _finish(options, result)


def _bench_model(options: argparse.Namespace) -> int:
    names = options.impl or tuple(MODEL_IMPLS)
    for name in names:
        if name not in MODEL_IMPLS:
            raise ValueError(
                f"implementation {name!r} is unknown, expected one of {', '.join(MODEL_IMPLS)}"
            )
    settings = _settings(options)
    shared = {**_shared(options), "impls": tuple(names), "head": options.head}
    result = document("model", settings, {**shared, "settings": asdict(settings)})
    _progress("measuring the machine")
    result["machine"]["rates"] = machine_section(settings, options.dtype or DTYPES)
    print(report.header(result), flush=True)
    for model in options.model or ("medium",):
        for dtype in options.dtype or (None,):
            for atoms in options.atoms or (None,):
                job = ModelJob(model=model, dtype=dtype, atoms=atoms, **shared)
                section = model_section(job, settings, _progress)
                _take(result, section)
                _show(report.model_table(section))
    return _finish(options, result)


def _take(result: dict[str, Any], section: dict[str, list[dict[str, Any]]]) -> None:
    for name, entries in section.items():
        result[name].extend(entries)


def _finish(options: argparse.Namespace, result: dict[str, Any]) -> int:
    if options.json:
        report.write_json(options.json, result)
    if options.plot and result["rows"]:
        report.plot(options.plot, result)
    for line in report.failure_lines(result["failures"]):
        print(f"mdcg bench: {line}", file=sys.stderr)
    return 1 if result["failures"] else 0


def _show(table: str) -> None:
    if table:
        print("\n" + table, flush=True)


def _progress(text: str) -> None:
    print(f"  … {text}", file=sys.stderr, flush=True)


def _print_list() -> None:
    print(report.case_list())
    print("\nimplementations")
    for peer in PEERS.values():
        reason = peer.missing("cpu")
        print(f"  {peer.name:12} {peer.description}" + (f" ({reason})" if reason else ""))
