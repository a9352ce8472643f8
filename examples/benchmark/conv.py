"""Measures one convolution layer: implementations in turns, compared with float64."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdcg.bench.model import refusal
from mdcg.bench.report import (
    format_number,
    milliseconds,
    numbers_table,
    scatter_note,
    write_json,
)
from mdcg.bench.timing import Clock, clock_for, interleave, peak_bytes, ratio, release_memory
from mdcg.cli._common import names
from mdcg.cli.bench import add_command, make_systems, measuring_arguments, start
from mdcg.patch import neighbor_list

from .cases import CASES, DEFAULT_CASES, DEFAULT_CUDA, Case, find_cases
from .layer import Graph, Prepared, build_layer
from .passes import (
    PASSES,
    Inputs,
    make_inputs,
    make_pass,
    reference,
    relative_errors,
    to_common,
)
from .peers import choose_peers, skipped_peers
from .programs import tell_skipped

_HELP = """\
Time one convolution layer: gather, tensor product, sum over the edges of each receiver. The
implementations run in turns in one process; their results are compared with float64. Passes: fwd
(value), fwd+bwd (gradients of all three inputs), fwd+bwd+dbl (gradients of the squared norm of the
first two gradients). On a GPU times are those between two CUDA events, one call each, from an idle
device; memory is what torch allocates during a call, inputs added."""

_R_MAX = 6.0

Refused = list[dict[str, Any]]


def add_parser(commands: Any) -> None:
    """Add the command ``conv``."""
    parser = add_command(commands, "conv", "time one layer beside others", _HELP, run)
    parser.add_argument("--case", type=names, metavar="NAME,...", help="layer shapes, of "
        f"{', '.join(CASES)}; wildcards or all (default {','.join(DEFAULT_CASES)}; on a GPU nine "
        "of three kinds)")  # fmt: skip
    measuring_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Time layers and print a table for each structure."""
    layers = _layers(options)
    chosen = choose_peers(options.impl, options.device)
    systems = make_systems(options)
    result = start(options)
    if not options.impl:
        tell_skipped(skipped_peers(options.device))
    for case, dtype in layers:
        for atoms in systems:
            print(f"  … {case.name} {dtype}", file=sys.stderr, flush=True)
            graph = make_graph(case, atoms, options.device)
            section = measure(case, dtype, graph, chosen, repeats=options.repeats)
            shared = {key: value for key, value in section.items() if not isinstance(value, list)}
            for kind in ("rows", "refused"):
                result[kind] += [{**shared, **one} for one in section[kind]]
            print("\n" + table(section, Path(options.system).name), flush=True)
            if options.json:
                write_json(options.json, result)
    return int(any(one["failed"] for one in result["refused"]))


def _layers(options: argparse.Namespace) -> list[tuple[Case, str]]:
    """Return layer shapes and their types."""
    if options.device == "cuda" and not options.case and not options.dtype:
        return [(CASES[name], dtype) for name, dtype in DEFAULT_CUDA]
    cases = find_cases(options.case or DEFAULT_CASES)
    return [(case, dtype) for case in cases for dtype in options.dtype or ("float32",)]


def event_clock(run: Callable[[], object], times: int) -> float:
    """Return the seconds of a call between events on the current stream of an idle device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3 / times


def conv_clock(device: str) -> Clock:
    """Return the clock of a device: the host's, or events."""
    return event_clock if device == "cuda" else clock_for(device)


def make_graph(case: Case, atoms: Any, device: str) -> Graph:
    """Return the edges of a structure, or a batch for cases measured as batches on GPUs."""
    if device == "cuda" and case.batch is not None:
        return make_batch(case.batch, device)
    index, _ = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, _R_MAX)
    index = index[:, np.argsort(index[1], kind="stable")]
    sender, receiver = (torch.from_numpy(row.copy()).to(device) for row in index)
    return Graph(len(atoms), sender, receiver)


def make_batch(rows: int, device: str = "cpu") -> Graph:
    """Return a batch of products without a graph."""
    each = torch.arange(rows, device=device)
    return Graph(rows, each, each, batched=True)


def measure(
    case: Case,
    dtype: str,
    graph: Graph,
    peers: Sequence[Any],
    *,
    repeats: int = 10,
) -> dict[str, Any]:
    """Time all implementations side by side and compare them with float64.

    Returns sizes of the problem, ``rows``, one per pass and implementation, and ``refused``:
    implementation, passes and reason of what could not be timed.
    """
    device = graph.sender.device.type
    layer = build_layer(case, getattr(torch, dtype), device)
    inputs = make_inputs(layer, graph)
    refused: Refused = []
    prepared = {}
    for peer in peers:
        try:
            prepared[peer.name] = peer.prepare(layer, graph)
        except Exception as error:
            refused.append({**refusal(peer.name, error, ("mdcg",)), "passes": list(PASSES)})
    exact = build_layer(case, torch.float64, device).tensor_product
    expected = reference(exact, graph, inputs)
    # on a GPU one call per sample, from an idle device, as the published timings are made
    options: dict[str, Any] = {"repeats": repeats}
    options |= {} if device == "cpu" else {"sample_seconds": 0.0}
    rows: list[dict[str, Any]] = []
    for name in PASSES:
        errors = _first_runs(name, prepared, inputs, expected.pop(name), refused)
        runs = {impl: make_pass(name, prepared[impl], inputs) for impl in errors}
        timings = interleave(runs, conv_clock(device), **options)
        for impl, seconds in timings.items():
            peak = peak_bytes(runs[impl], device, inputs.nbytes)
            rows.append(
                {
                    "pass": name,
                    "impl": impl,
                    "seconds": seconds,
                    "relative_error": errors[impl],
                    "peak_bytes": peak,
                }
            )
    problem = layer.problem
    return {
        "case": case.name,
        "dtype": dtype,
        "nodes": graph.n_nodes,
        "edges": len(graph.sender),
        "batched": graph.batched,
        "weight_numel": problem.weight_numel,
        "out_dim": problem.irreps_out.dim,
        "paths": len(problem.paths),
        "nnz": problem.nnz,
        "rows": add_ratios(rows),
        "refused": refused,
    }


def _first_runs(
    name: str,
    prepared: Mapping[str, Prepared],
    inputs: Inputs,
    expected: Any,
    refused: Refused,
) -> dict[str, float]:
    """Run a pass of every implementation once; return relative errors of what ran."""
    errors: dict[str, float] = {}
    for impl, ready in prepared.items():
        try:
            results = to_common(name, ready, make_pass(name, ready, inputs)())
            errors[impl] = max(relative_errors(results, expected))
            del results
        except Exception as error:
            found = refusal(impl, error, ("mdcg",))
            same = [
                one for one in refused if (one["impl"], one["reason"]) == (impl, found["reason"])
            ]
            if same:
                same[0]["passes"].append(name)
            else:
                refused.append({**found, "passes": [name]})
        release_memory()
    return errors


def add_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the ratios to e3nn and to the fastest other package in the same pass."""
    for name in {row["pass"] for row in rows}:
        mine = [row for row in rows if row["pass"] == name]
        others = [row["seconds"] for row in mine if row["impl"] != "mdcg"]
        fastest = min(others, key=lambda seconds: float(seconds["median"]), default=None)
        base = next((row for row in mine if row["impl"] == "e3nn"), None)
        for row in mine:
            row["of_fastest_other"] = ratio(row["seconds"], fastest) if fastest else None
            row["speedup"] = ratio(base["seconds"], row["seconds"]) if base else None
            row["of_e3nn"] = None
            if base and base["peak_bytes"] and row["peak_bytes"]:
                row["of_e3nn"] = row["peak_bytes"] / base["peak_bytes"]
    return rows


def table(section: Mapping[str, Any], system: str) -> str:
    """Show one layer: its sizes, and a row per pass and implementation."""
    nodes, edges = section["nodes"], section["edges"]
    size = f"{system}, {nodes} atoms, {edges} edges ({edges / nodes:.1f} per atom)"
    if section["batched"]:
        size = f"batch of {nodes} products, no graph"
    title = (
        f"{section['case']}  {section['dtype']}\n  {size}; weights {section['weight_numel']}, "
        f"output {section['out_dim']}, {section['paths']} paths, {section['nnz']} nonzeros"
    )
    columns = (
        *("pass", "impl", "ms", "quartiles", "vs e3nn", "of fastest other", "rel. error"),
        *("peak MB", "of e3nn"),
    )
    lines = [
        [
            row["pass"],
            row["impl"],
            *milliseconds(row["seconds"]),
            _cell("{:.1f}x", row["speedup"]),
            _cell("{:.2f}", row["of_fastest_other"]),
            f"{row['relative_error']:.0e}",
            format_number(row["peak_bytes"] / 1e6) if row["peak_bytes"] else "-",
            _cell("{:.2f}", row["of_e3nn"]),
        ]
        for row in section["rows"]
    ]
    refused = [
        f"  {one['impl']} ({', '.join(one['passes'])}): {one['reason']}"
        for one in section["refused"]
    ]
    times = [(f"{row['impl']} {row['pass']}", row["seconds"]) for row in section["rows"]]
    found = [numbers_table(columns, lines), *scatter_note(times)] if lines else []
    return "\n".join([title, *found, *refused])


def _cell(form: str, value: float | None) -> str:
    return "-" if value is None else form.format(value)
