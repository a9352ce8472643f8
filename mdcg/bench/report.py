"""Tables, JSON and plots of benchmark results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import MissingDependencyError
from .cases import CASES

__all__ = [
    "case_list",
    "conv_table",
    "failure_lines",
    "format_number",
    "format_table",
    "header",
    "model_table",
    "plot",
    "reasons_line",
    "require_matplotlib",
    "write_json",
]

Row = Mapping[str, Any]


def format_table(columns: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Align text columns: the first two to the left, the others to the right."""
    widths = [max(len(line[n]) for line in (columns, *rows)) for n in range(len(columns))]
    lines = []
    for line in (columns, *rows):
        cells = [
            cell.ljust(width) if n < 2 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def format_number(value: float | None, digits: int = 3) -> str:
    """Round to significant digits without exponents for ordinary sizes."""
    if value is None:
        return "-"
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.1e}"
    size = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, digits - size)}f}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _milliseconds(row: Row) -> list[str]:
    seconds = row["seconds"]
    spread = (
        f"{format_number(1e3 * seconds['quartile1'])}-{format_number(1e3 * seconds['quartile3'])}"
    )
    return [format_number(1e3 * seconds["median"]), spread]


def _memory(row: Row) -> list[str]:
    memory = row.get("memory")
    ratio = row.get("memory_ratio")
    return [
        "-" if memory is None else format_number(memory["peak_bytes"] / 1e6),
        "-" if ratio is None else f"{ratio:.2f}",
    ]


def _speedup(row: Row) -> str:
    return f"{row['speedup']:.1f}x" if "speedup" in row else "-"


def header(document: Row) -> str:
    """Say what was measured on what, and how."""
    machine, settings = document["machine"], document["settings"]
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    environment = " ".join(f"{key}={value}" for key, value in settings["environment"].items())
    host = f"{machine['cpu']}, {settings['threads']} of {machine['cores']} cores"
    on_gpu = "gpu" in machine or document["options"].get("device") == "cuda"
    where = f"{machine.get('gpu', 'a CUDA device')} ({host})" if on_gpu else host
    lines = [f"mdcg {document['mdcg']} bench {document['benchmark']} on {where}; {packages}"]
    if on_gpu:
        conv = document["benchmark"] == "conv"
        clock = "between CUDA events" if conv else "by the host's clock, each waited for"
        engine = "" if conv else "; of the engine: all that it takes from the device's driver"
        lines.append(
            f"times: median of interleaved runs in one process {clock}, quartiles; "
            f"peak memory: inputs and all that torch allocates above them{engine}"
        )
    else:
        lines += [
            f"allocator {settings['allocator']} ({settings['libc']}); {environment}",
            "times: median of interleaved runs in one process, quartiles; peak memory: inputs and "
            "all above them, one process per implementation with the stock allocator",
        ]
    for dtype, rates in machine["rates"].items():
        lines.append(
            f"machine, {dtype}: matrix product {format_number(rates['gemm_gflops'])} GFLOP/s, "
            f"copy {format_number(rates['copy_gbytes'])} GB/s, "
            f"read {format_number(rates['read_gbytes'])} GB/s"
        )
    return "\n".join(lines)


def conv_table(section: Mapping[str, Sequence[Row]]) -> str:
    """Show one layer: its sizes, a row per pass and implementation, the start-up of the kernels."""
    rows, refused = section["rows"], _refused_lines(section.get("refused", ()))
    if not rows:
        return "\n".join(refused)
    first = rows[0]
    if first.get("batched"):
        size = f"batch of {first['nodes']} products, no graph"
    else:
        size = (
            f"{first['system']}, {first['nodes']} atoms, {first['edges']} edges "
            f"({first['edges'] / first['nodes']:.1f} per atom), sorted by {first['order']}"
        )
    title = (
        f"{first['case']}  {first['dtype']}  {first['irreps_in1']} (x) {first['irreps_in2']}\n"
        f"  {size}; weights {first['weight_numel']}, output {first['out_dim']}, "
        f"{first['paths']} paths, {first['nnz']} nonzeros"
    )
    on_gpu = first.get("device") == "cuda"
    columns = _CONV_GPU if on_gpu else _CONV_CPU
    lines = [
        [
            row["pass"],
            row["impl"] + ("" if row["side_by_side"] else " (alone)"),
            *_milliseconds(row),
            *(_gpu_cells(row) if on_gpu else _cpu_cells(row)),
        ]
        for row in rows
    ]
    parts = [title, format_table(columns, lines), *refused]
    parts += [text for text in map(_startup_line, section["startup"]) if text]
    return "\n".join(parts)


_CONV_CPU = (
    "pass", "impl", "ms", "quartiles", "vs e3nn", "rel. error", "GFLOP/s", "of GEMM",
    "GB/s", "of copy", "peak MB", "of e3nn",
)  # fmt: skip
_CONV_GPU = (
    "pass", "impl", "ms", "quartiles", "GPU ms", "launches", "vs e3nn", "of best peer",
    "x floor", "rel. error", "peak MB", "beyond tensors",
)  # fmt: skip


def _cpu_cells(row: Row) -> list[str]:
    return [
        _speedup(row),
        _error(row),
        format_number(row["gflops"]),
        _percent(row["of_gemm"]),
        format_number(row["gbytes"]),
        _percent(row["of_copy"]),
        *_memory(row),
    ]


def _gpu_cells(row: Row) -> list[str]:
    """Times relative to the best other package, and to reading and writing everything once."""
    memory = row.get("memory", {})
    beyond = memory.get("beyond_tensors")
    return [
        *_kernels(row),
        _speedup(row),
        _best_peer(row),
        f"{1 / row['of_copy']:.2f}",
        _error(row),
        _memory(row)[0],
        "-" if beyond is None else f"{100 * beyond:+.0f} %",
    ]


def _kernels(row: Row) -> list[str]:
    seconds, launches = row.get("kernel_seconds"), row.get("launches")
    return [
        format_number(1e3 * seconds) if seconds else "-",
        f"{launches:.0f}" if launches else "-",
    ]


def _best_peer(row: Row) -> str:
    return f"{row['of_best_peer']:.2f}x" if "of_best_peer" in row else "-"


def _error(row: Row) -> str:
    return "-" if row["relative_error"] is None else f"{row['relative_error']:.0e}"


def reasons_line(reasons: Mapping[str, str]) -> str:
    """Name implementations and why they have no times, in one line."""
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def _refused_lines(refused: Sequence[Row]) -> list[str]:
    lines = []
    for one in refused:
        passes = f" ({', '.join(one['passes'])})" if "passes" in one else ""
        lines.append(f"  {one['impl']}{passes}: {one['reason']}")
    return lines


def _startup_line(entry: Row) -> str:
    """Say what compiling and loading took, by the cache's own counters and by the clock."""
    words = []
    for state, verb, counter in (("cold", "compiled", "compile"), ("cached", "loaded", "load")):
        found = entry[state]
        if found is None:
            continue
        counters = found["counters"]
        count = int(counters.get(f"{verb}", 0))
        scale, unit = (1.0, "s") if state == "cold" else (1e3, "ms")
        own = format_number(scale * counters.get(f"{counter}_seconds", 0.0))
        total = format_number(scale * found["seconds"])
        words.append(
            f"{verb} {count} kernel{'' if count == 1 else 's'} in {own} {unit} "
            f"(first calls of all passes {total} {unit})"
        )
    return f"  {entry['impl']}: {'; from the cache: '.join(words)}" if words else ""


def model_table(section: Mapping[str, Sequence[Row]]) -> str:
    """Show one model on one system: a title, and a row per implementation."""
    rows, refused = section["rows"], _refused_lines(section.get("refused", ()))
    if not rows:
        return "\n".join(refused)
    first = rows[0]
    title = (
        f"{Path(first['model']).name}  {first['dtype']}  {first['model_class']}, "
        f"r_max {first['r_max']:g} Å; {_wanted(rows)}\n"
        f"  {first['system']}, {first['atoms']} atoms, {first['edges']} edges "
        f"({first['edges'] / first['atoms']:.1f} per atom)"
    )
    on_gpu = first.get("device") == "cuda"
    profiled = any("launches" in row for row in rows)
    columns = (
        *("impl", "", "ms/step", "quartiles"),
        *(("GPU ms", "launches") if profiled else ()),
        *(("of best peer",) if on_gpu else ()),
        *("µs/atom", "katom-step/s", "vs e3nn", "max |dF|", "to float64", "max |F|"),
        *("peak MB", "of e3nn"),
    )
    lines = [
        [
            row["impl"],
            "" if row["side_by_side"] else "(alone)",
            *_milliseconds(row),
            *(_kernels(row) if profiled else ()),
            *((_best_peer(row),) if on_gpu else ()),
            format_number(row["microseconds_per_atom"]),
            format_number(row["katom_steps_per_second"]),
            _speedup(row),
            "-" if row["impl"] == "e3nn" else _scientific(row.get("force_difference_e3nn")),
            _scientific(row.get("force_difference_float64")),
            format_number(row["max_force"]),
            *_memory(row),
        ]
        for row in rows
    ]
    return "\n".join([title, format_table(columns, lines), *refused])


def _wanted(rows: Sequence[Row]) -> str:
    """Say what all of them compute, and what only some do."""
    with_stress = [row["impl"] for row in rows if row.get("stress")]
    if not with_stress:
        return "energy and forces"
    if len(with_stress) == len(rows):
        return "energy, forces and stress"
    return f"energy and forces; with stress: {', '.join(with_stress)}"


def _scientific(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def failure_lines(failures: Sequence[Row]) -> list[str]:
    """Say which jobs failed and why."""
    lines = []
    for failure in failures:
        options = failure["job"]["options"]
        what = options.get("case") or options.get("model")
        who = failure["job"].get("impl") or ", ".join(options["impls"])
        lines.append(f"{what} ({who}): {failure['message']}")
    return lines


def case_list() -> str:
    """List the layer shapes."""
    rows = []
    for case in CASES.values():
        problem = case.problem()
        rows.append(
            [
                case.name,
                f"{case.irreps_in1} (x) {case.irreps_in2}",
                str(problem.weight_numel) + (" shared" if case.shared_weights else ""),
                str(problem.irreps_out.dim),
                str(problem.num_paths),
                str(problem.nnz),
                case.origin,
            ]
        )
    return format_table(
        ("case", "inputs", "weights", "output", "paths", "nonzeros", "from"), rows, indent=""
    )


def write_json(path: str, document: Row) -> None:
    """Write a document, whole or not at all."""
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    partial.write_text(json.dumps(document, indent=1) + "\n")
    partial.replace(target)


def require_matplotlib() -> None:
    """Check that a plot can be made, before hours of measuring.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "--plot needs matplotlib, which is not installed: pip install 'mdcg[bench]'"
        ) from error


def plot(path: str, document: Row) -> None:
    """Draw times as bars, a group per layer and pass or per model; the suffix sets the format."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = document["rows"]
    groups = list(dict.fromkeys(_group(row) for row in rows))
    impls = list(dict.fromkeys(row["impl"] for row in rows))
    figure = Figure(figsize=(max(6.0, 1.5 + 0.9 * len(groups)), 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    width = 0.8 / max(1, len(impls))
    for n, impl in enumerate(impls):
        mine = {_group(row): row for row in rows if row["impl"] == impl}
        places = [g for g, name in enumerate(groups) if name in mine]
        chosen = [mine[groups[g]] for g in places]
        middle = [1e3 * row["seconds"]["median"] for row in chosen]
        spread = [
            [m - 1e3 * row["seconds"]["quartile1"] for m, row in zip(middle, chosen, strict=True)],
            [1e3 * row["seconds"]["quartile3"] - m for m, row in zip(middle, chosen, strict=True)],
        ]
        where = [g + (n - (len(impls) - 1) / 2) * width for g in places]
        bars = axes.bar(where, middle, width, yerr=spread, capsize=2, label=impl)
        labels = [_speedup(row) if impl != "e3nn" and "speedup" in row else "" for row in chosen]
        axes.bar_label(bars, labels, fontsize=8)
    axes.set_yscale("log")
    axes.set_ylabel("ms per call" if document["benchmark"] == "conv" else "ms per step")
    axes.set_xticks(range(len(groups)), groups, rotation=30, ha="right", fontsize=8)
    axes.legend()
    machine, settings = document["machine"], document["settings"]
    host = f"{machine['cpu']}, threads: {settings['threads']}, {settings['allocator']} allocator"
    axes.set_title(f"mdcg {document['mdcg']}, {machine.get('gpu', host)}", fontsize=9)
    figure.savefig(path, dpi=150)


def _group(row: Row) -> str:
    if "case" in row:
        return f"{row['case']} {row['dtype']}\n{row['pass']}"
    return f"{Path(row['model']).name} {row['dtype']}\n{row['atoms']} atoms"
