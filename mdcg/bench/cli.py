"""The command ``python -m mdcg bench``; alone in this room it prints."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import MdcgError
from . import report
from .arguments import make_parser
from .cases import CASES, DEFAULT_CASES, DEFAULT_CUDA, Case, find_cases
from .jobs import (
    DTYPES,
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
from .runner import (
    Settings,
    available_cores,
    conv_section,
    document,
    machine_section,
    model_sections,
)
from .systems import DEFAULT_ATOMS, make_system

__all__ = ["main"]

# The size of the GPU timings that others publish: 436,904 edges at 6 Å.
_GPU_ATOMS = 5184


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
    parser = make_parser()
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

    default = (648, 5184) if options.system == "water" else (DEFAULT_ATOMS[options.system],)
    rows = []
    with _package(options.package) as package:
        for atoms in options.atoms or default:
            _progress(f"{atoms} atoms")
            rows += lammps.measure(
                lammps.Job(
                    package,
                    options.system,
                    atoms,
                    options.ranks,
                    options.steps,
                    options.device,
                    options.weak,
                    options.exchange,
                )
            )
    print(lammps.table(rows))
    if options.json:
        report.write_json(options.json, {"command": "lammps", "rows": rows})
    return 0


@contextmanager
def _package(name: str) -> Iterator[Path]:
    """Give the file of that name, or the model of that name as a package."""
    known = (*SIZES, *VARIANTS, *NEQUIP_PRESETS)
    if name not in known:
        _require_package(Path(name))
        yield Path(name)
        return
    from .engine_models import save_package

    with tempfile.TemporaryDirectory(prefix="mdcg-") as folder:
        _progress(f"convert {name}")
        path = Path(folder) / f"{name}.mdcg"
        save_package(name, path)
        yield path


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
