"""The command ``python -m mdcg bench``; alone in this room it prints."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import MdcgError
from . import report
from .cases import CASES, DEFAULT_CASES, DEFAULT_CUDA, Case, find_cases
from .jobs import (
    DTYPES,
    MODEL_IMPLS,
    NEQUIP_PRESETS,
    PASSES,
    SIZES,
    VARIANTS,
    ConvJob,
    ModelJob,
)
from .peers import (
    PEERS,
    choose_model_impls,
    choose_peers,
    skipped_model_impls,
    skipped_peers,
)
from .process import ALLOCATORS
from .runner import (
    Settings,
    available_cores,
    conv_section,
    document,
    machine_section,
    model_sections,
)
from .systems import ORDERS, make_system

__all__ = ["main"]

# The size of the GPU timings that others publish: 436,904 edges at 6 Å.
_GPU_ATOMS = 5184

_CONV_HELP = """\
Time one convolution layer: gather, tensor product, sum over the edges of each receiver. The
implementations run in turns in one process; their results are compared with float64; peak memory is
measured in one process per implementation. Passes: fwd (value), fwd+bwd (gradients of all three
inputs), fwd+bwd+dbl (gradients of the squared norm of the first two gradients).

On a GPU (--device cuda) cuEquivariance and OpenEquivariance run too where they are installed; times
are those between two CUDA events, one call each, from an idle device; "GPU ms" is while its kernels
run, without what they wait for the host, from a profiler that runs after all timing; memory is what
torch allocates during a call, inputs added."""

_MODEL_HELP = """\
Time energy and forces of a model, as it is and after mdcg.patch_model, in turns in one
process. The neighbour list is made before and not counted. MODEL is small, medium or large (random
weights, 89 elements, the shapes of MACE-MP-0), off-medium or mpa-medium (those of MACE-OFF23, 10
elements, and of MACE-MPA-0, with Agnesi transform, density and ZBL), nequip-s, -m, -l or -xl
(random weights, 87 elements, the shapes of NequIP's foundation models, stress included) or a
checkpoint file. The engine runs the model as a package, as in dynamics: positions come from the
host at every step and results go back, and the neighbour list holds.

On a GPU (--device cuda) a model also runs as mace or NequIP converts it to cuEquivariance and
OpenEquivariance, where installed; everything computes the stress too; all sizes of one model are
measured in one process; and all times are the host's, each step being waited for. An implementation
that runs out of memory is left out at that size. For one size, "GPU ms" is while kernels run, from
a profiler that runs after all timing. `bench table` and `bench plot` show what --json wrote:

  python -m mdcg bench model medium --device cuda --atoms 192,1536,5184,24000 --json a.json
  python -m mdcg bench model medium --device cuda --atoms 1029000 --impl engine --no-check \\
      --json b.json
  python -m mdcg bench table a.json b.json
  python -m mdcg bench plot a.json b.json -o times.svg"""

_TABLE_HELP = """\
Print a Markdown table of what `bench model --json` wrote: milliseconds per step and memory of each
model and size. Where several files have the same, the last one counts."""

_PLOT_HELP = """\
Draw what `bench model --json` wrote of one model: milliseconds per step, and microseconds per atom
and step, against the number of atoms."""

_LAMMPS_HELP = """\
Time pair_style mdcg in the installed LAMMPS, one thread per rank: the pair time of a step against
the engine's own time for the same box of water in this process, the exchange of rows between
layers (a part of the pair time), LAMMPS' communication, and what a new neighbour list costs: making
it, and the pair time of that step beyond that of others. Milliseconds of one rank on average."""

_STARTUP_HELP = """\
Time `import mdcg` and opening a package in fresh processes: once with an empty cache of kernels, so
that they are compiled, and several times with a full one."""


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _list(text))


def _limits(text: str) -> tuple[tuple[str, int], ...]:
    pairs = [part.partition("=") for part in _list(text)]
    if not all(name in MODEL_IMPLS and count.isdigit() for name, _, count in pairs):
        raise argparse.ArgumentTypeError(f"{text} is not IMPL=N,...")
    return tuple((name, int(count)) for name, _, count in pairs)


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
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="conv|model|lammps|startup|table|plot"
    )
    form = argparse.RawDescriptionHelpFormatter
    conv = commands.add_parser(
        "conv", help="one layer", description=_CONV_HELP, formatter_class=form
    )
    conv.add_argument(
        "--case", type=_list, action="append", metavar="NAME,...",
        help=f"layer shapes: names, wildcards or all (default {','.join(DEFAULT_CASES)}; on a GPU "
        "nine of MACE, NequIP and DiffDock)",
    )  # fmt: skip
    conv.add_argument(
        "--batch", type=_positive, metavar="N",
        help="no graph: a batch of N products (default on a GPU for diffdock-*: 50000)",
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
    add = model.add_argument
    add("--head", help="head of a model with several")
    add(
        "--stress", action=argparse.BooleanOptionalAction,
        help="the stress too (default: on a GPU)",
    )  # fmt: skip
    add("--packages", metavar="DIR", help="take packages of random models from there, keep them")
    add(
        "--largest", type=_limits, default=(), metavar="IMPL=N,...",
        help="leave an implementation out above N atoms",
    )  # fmt: skip
    add("--turns", metavar="FILE", help="wait while another command that names FILE measures")
    add("--no-kernels", action="store_true", help="skip times of kernels on a GPU")
    add("--no-rates", action="store_true", help="skip the machine's ceilings")
    for command in (conv, model):
        _common(command)
    lammps = commands.add_parser(
        "lammps", help="pair_style mdcg", description=_LAMMPS_HELP, formatter_class=form
    )
    lammps.add_argument("package", type=Path, metavar="FILE.mdcg", help="a package with H and O")
    add = lammps.add_argument
    add("--atoms", type=_counts, default=(648, 5184), metavar="N,...", help="default 648,5184")
    add("--ranks", type=_counts, default=(1, 2), metavar="N,...", help="default 1,2")
    add("--steps", type=_positive, default=10, metavar="N", help="timed steps (default 10)")
    add("--json", metavar="FILE", help="write all numbers")
    startup = commands.add_parser(
        "startup", help="importing and opening", description=_STARTUP_HELP, formatter_class=form
    )
    startup.add_argument("package", type=Path, metavar="FILE.mdcg", help="a package")
    add = startup.add_argument
    add("--repeats", type=_positive, default=5, metavar="N", help="processes (default 5)")
    add("--json", metavar="FILE", help="write all numbers")
    table = commands.add_parser(
        "table", help="results as Markdown", description=_TABLE_HELP, formatter_class=form
    )
    plot = commands.add_parser(
        "plot", help="results as a drawing", description=_PLOT_HELP, formatter_class=form
    )
    for command in (table, plot):
        command.add_argument("results", nargs="+", metavar="RESULT.json", help="of bench model")
    add = plot.add_argument
    add("-o", "--output", required=True, metavar="FILE", help=".svg, .png or .pdf")
    add("--model", metavar="MODEL", help="default: the one with most sizes")
    add("--dtype", choices=DTYPES, help="default: the one with most sizes")
    return parser


def _common(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--impl", type=_list, metavar="NAME,...", help="implementations (default: all that can run)"
    )
    add("--dtype", type=_list, metavar="DTYPE,...", help=f"of {', '.join(DTYPES)}")
    add("--system", default="water", metavar="NAME|FILE", help="water, carbon or a structure file")
    add("--atoms", type=_counts, metavar="N,...", help="sizes (default: water 192, on a GPU 5184; "
        "carbon 1000)")  # fmt: skip
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default cpu)")
    add("--repeats", type=_positive, default=10, metavar="N", help="samples (default 10)")
    add("--warmup", type=_positive, default=3, metavar="N", help="untimed calls (default 3)")
    add("--threads", type=_positive, metavar="N", help="default: all cores of this process")
    add("--malloc", choices=ALLOCATORS, default="tuned", help="glibc settings of the timed process")
    add("--seed", type=int, default=0, help="of inputs and random weights (default 0)")
    add("--no-check", action="store_true", help="skip the comparison with float64")
    add("--no-memory", action="store_true", help="skip peak memory")
    add("--verbose", action="store_true", help="say what takes its time: mostly compilers")
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
        if options.command == "lammps":
            return _bench_lammps(options)
        if options.command == "startup":
            return _bench_startup(options)
        if options.command in ("table", "plot"):
            return _show_results(options)
        _validate(options)
        if options.command == "conv" and options.list:
            _print_list()
            return 0
        if options.plot:
            report.require_matplotlib()
        with _ended_by_exception():
            return _bench_conv(options) if options.command == "conv" else _bench_model(options)
    except ValueError as error:
        print(f"mdcg bench: {error}", file=sys.stderr)
        return 2
    except MdcgError as error:
        print(f"mdcg bench: {error}", file=sys.stderr)
        return 1


@contextmanager
def _ended_by_exception() -> Iterator[None]:
    """Leave through an exception when told to end, so that no process goes on measuring."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _validate(options: argparse.Namespace) -> None:
    """Refuse what a process would only find out after minutes."""
    checks: list[tuple[str, Sequence[str], Sequence[str]]] = [
        ("dtype", options.dtype or (), DTYPES)
    ]
    if options.command == "conv":
        checks.append(("pass", options.passes, PASSES))
        options.layers = _layers(options)
    for name in options.model if options.command == "model" else ():
        known = (*SIZES, *VARIANTS, *NEQUIP_PRESETS)
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


def _layers(options: argparse.Namespace) -> list[tuple[Case, str]]:
    """Return layer shapes and their types."""
    if options.device == "cuda" and not options.case and not options.dtype:
        return [(CASES[name], dtype) for name, dtype in DEFAULT_CUDA]
    cases = find_cases(sum(options.case or [], ()) or DEFAULT_CASES)
    return [(case, dtype) for case in cases for dtype in options.dtype or ("float32",)]


def _sizes(options: argparse.Namespace) -> tuple[int | None, ...]:
    if options.atoms:
        return tuple(options.atoms)
    return (_GPU_ATOMS if (options.device, options.system) == ("cuda", "water") else None,)


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(
        threads=options.threads or available_cores(),
        allocator=options.malloc,
        memory=not options.no_memory,
        startup=options.command == "conv" and not options.no_startup,
        verbose=options.verbose,
        rates=not getattr(options, "no_rates", False),
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
    skipped = {} if options.impl else skipped_peers(options.device)
    settings = _settings(options)
    shared = {
        **_shared(options),
        "impls": names,
        "passes": tuple(options.passes),
        "order": options.order,
    }
    dtypes = tuple(dict.fromkeys(dtype for _, dtype in options.layers))
    result = _start(options, settings, shared, dtypes, skipped)
    for case, dtype in options.layers:
        batch = options.batch or (case.batch if options.device == "cuda" else None)
        for atoms in (None,) if batch else _sizes(options):
            job = ConvJob(case=case.name, dtype=dtype, atoms=atoms, batch=batch, **shared)
            section = conv_section(job, settings, result["machine"]["rates"], _progress)
            _take(options, result, section)
            _show(report.conv_table(section))
    return _finish(options, result)


def _bench_model(options: argparse.Namespace) -> int:
    names = choose_model_impls(options.impl, options.device)
    skipped = skipped_model_impls(options.device, options.impl)
    settings = _settings(options)
    on_gpu = options.device == "cuda"
    shared = {
        **_shared(options),
        "impls": names,
        "head": options.head,
        "stress": on_gpu if options.stress is None else options.stress,
        "kernels": not options.no_kernels,
        "packages": options.packages,
        "turns": options.turns,
        "largest": options.largest,
    }
    result = _start(options, settings, shared, options.dtype or DTYPES, skipped)
    sizes = _sizes(options)
    # on a GPU all sizes share what it costs to convert a model
    together = [sizes] if on_gpu else [(atoms,) for atoms in sizes]
    for model in options.model or ("medium",):
        for dtype in options.dtype or (None,):
            for atoms in together:
                job = ModelJob(model=model, dtype=dtype, atoms=atoms, **shared)
                for section in model_sections(job, settings, _progress):
                    if "gpu" in section:
                        result["machine"]["gpu"] = section.pop("gpu")
                    _take(options, result, section)
                    _show(report.model_table(section))
    return _finish(options, result)


def _show_results(options: argparse.Namespace) -> int:
    from . import comparison

    found = comparison.read_results(options.results)
    if options.command == "table":
        print(comparison.markdown_table(found))
    else:
        report.require_matplotlib()
        comparison.draw(options.output, found, options.model, options.dtype)
    return 0


def _bench_lammps(options: argparse.Namespace) -> int:
    from . import lammps

    _require_package(options.package)
    rows = []
    for atoms in options.atoms:
        _progress(f"{atoms} atoms")
        rows += lammps.measure(options.package, atoms, options.ranks, options.steps)
    print(lammps.table(rows))
    if options.json:
        report.write_json(options.json, {"command": "lammps", "rows": rows})
    return 0


def _bench_startup(options: argparse.Namespace) -> int:
    from . import startup

    _require_package(options.package)
    result = startup.measure(options.package, options.repeats)
    print(startup.table(result))
    if options.json:
        report.write_json(options.json, {"command": "startup", **result})
    return 0


def _require_package(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"{path} is not there: convert one, mdcg-patch IN -o OUT.mdcg")


def _start(
    options: argparse.Namespace,
    settings: Settings,
    shared: dict[str, Any],
    dtypes: Sequence[str],
    skipped: dict[str, str],
) -> dict[str, Any]:
    """Start the document: measure the machine, say who is not there."""
    result = document(options.command, settings, {**shared, "settings": asdict(settings)})
    if settings.rates:
        _progress("measuring the machine")
    result["machine"].update(machine_section(settings, dtypes, options.device))
    print(report.header(result), flush=True)
    if skipped and (options.device == "cuda" or options.impl):
        result["skipped"] = skipped
        print(f"not measured: {report.reasons_line(skipped)}", flush=True)
    return result


def _take(
    options: argparse.Namespace, result: dict[str, Any], section: dict[str, list[dict[str, Any]]]
) -> None:
    """Add a section, and write what there is: a later one may take long or fail."""
    for name, entries in section.items():
        result[name].extend(entries)
    if options.json:
        report.write_json(options.json, result)


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
        reason = None if peer.missing("cpu") is None else peer.missing("cuda") or "GPU only"
        print(f"  {peer.name:12} {peer.description}" + (f" ({reason})" if reason else ""))
