"""Times of whole models from several runs, as a table in Markdown and as a drawing over sizes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mdcg.bench.report import format_number
from mdcg.cli.bench import add_command

from .models import NAMES

Row = Mapping[str, Any]
Place = tuple[str, str, str, int]  # system, model, dtype and outputs, atoms

# In the order of columns and of drawing: name, colour, marker.
_IMPLS = {
    "original": ("e3nn", "#8c8c8c", "s"),
    "oeq": ("OpenEquivariance", "#d28b26", "^"),
    "cueq": ("cuEquivariance", "#5b9a3c", "D"),
    "flashtp": ("FlashTP", "#c27ba0", "P"),
    "fastmace": ("FastMACE", "#b5523b", "X"),
    "symmetrix": ("Symmetrix-XL", "#3f8f8a", "h"),
    "aoti": ("NequIP, AOTInductor", "#a07cc0", "<"),
    "aoti-oeq": ("NequIP, AOTInductor, OpenEquivariance", "#7d4f9e", ">"),
    "patched": ("mdcg, patched", "#7fb0dc", "v"),
    "engine": ("mdcg, engine", "#1f5fa8", "o"),
    "mdcg": ("mdcg", "#1f5fa8", "o"),
    "engine-exact": ("engine, radial networks exact", "#6a4c9c", "*"),
}
_OWN = ("engine", "mdcg", "patched")
_PEERS = ("original", "oeq", "cueq", "flashtp", "fastmace", "symmetrix", "aoti", "aoti-oeq")
_PACKAGES = {
    "original": "e3nn",
    "cueq": "cuequivariance",
    "oeq": "openequivariance",
    "flashtp": "flashTP_e3nn",
    "fastmace": "fastmace",
    "symmetrix": "symmetrix-xl",
    "aoti": "nequip",
    "aoti-oeq": "nequip",
}
# Memory of a card in the drawing of how many atoms fit: that of an H200.
_CARD_BYTES = 141e9


def add_parser(commands: Any) -> None:
    """Add the commands ``table`` and ``plot``."""
    text = "print results of `model` or `dynamics` as Markdown; later files replace earlier ones"
    table = add_command(commands, "table", text, text, run)
    text = "draw results of `model` or `dynamics` for one model against the number of atoms"
    plot = add_command(commands, "plot", text, text, run)
    for one in (table, plot):
        one.add_argument("results", nargs="+", metavar="RESULT.json")
    plot.add_argument("-o", "--output", required=True, metavar="FILE", help=".svg, .png or .pdf")
    plot.add_argument("--model", metavar="MODEL", help="default: the one with most sizes")
    plot.add_argument("--dtype", help="default: the one with most sizes")


def run(options: argparse.Namespace) -> None:
    """Print the table or draw."""
    found = read_results(options.results)
    if options.command == "table":
        print(markdown_table(found))
    else:
        draw(options.output, found, options.model, options.dtype)


@dataclass
class Results:
    """The contents of several result files.

    Rows, and reasons for missing rows, are stored by system, model, precision and atoms, then by
    implementation. Later files replace earlier ones.
    """

    benchmark: str = ""
    hardware: list[str] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)
    rows: dict[Place, dict[str, Row]] = field(default_factory=dict)
    refused: dict[Place, dict[str, str]] = field(default_factory=dict)

    @property
    def places(self) -> list[Place]:
        """All models and sizes: known models first, files as they come, sizes ascending."""
        found = list(dict.fromkeys((*self.rows, *self.refused)))
        known = [*NAMES, *(place[1] for place in found)]
        return sorted(found, key=lambda place: (known.index(place[1]), place[0], *place[2:]))

    def milliseconds(self, place: Place, impl: str) -> float | None:
        """Return the time of a step, or None."""
        row = self.rows.get(place, {}).get(impl)
        return None if row is None else 1e3 * float(row["seconds"]["median"])


def read_results(paths: Sequence[str]) -> Results:
    """Read files that one command wrote, ``model --json`` or ``dynamics --json``.

    `ValueError` if one is missing or something else.
    """
    found = Results()
    for path in paths:
        try:
            document = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{path} cannot be read ({error}): give what `model --json` wrote"
            ) from error
        kind = document.get("benchmark") if isinstance(document, dict) else None
        if kind not in ("model", "dynamics"):
            raise ValueError(f"{path} is not a result of `model --json` or `dynamics --json`")
        if found.benchmark not in ("", kind):
            raise ValueError(
                f"{path} is a result of `{kind}`, expected one of `{found.benchmark}` as before it"
            )
        found.benchmark = kind
        _take(found, document)
    if not found.rows:
        raise ValueError(f"{', '.join(paths)}: nothing was measured, so there is nothing to show")
    return found


def _take(found: Results, document: Row) -> None:
    machine = document["machine"]
    name = machine.get("gpu") or f"{machine['cpu']}, threads: {document['options']['threads']}"
    if name not in found.hardware:
        found.hardware.append(name)
    found.packages.update(machine["packages"], mdcg=document["mdcg"])
    outputs = ", with stress" if document["options"].get("stress") else ""
    for row in document["rows"]:
        place = _place(row, outputs)
        found.rows.setdefault(place, {})[row["impl"]] = row
        found.refused.get(place, {}).pop(row["impl"], None)
    for one in document["refused"]:
        place = _place(one, outputs)
        if one["impl"] not in found.rows.get(place, {}):
            found.refused.setdefault(place, {})[one["impl"]] = one["reason"]


def _place(row: Row, outputs: str) -> Place:
    return row["system"], row["model"], row.get("dtype", "") + outputs, row["atoms"]


def _impls(rows: Iterable[Mapping[str, object]]) -> list[str]:
    present = {impl for each in rows for impl in each}
    return [impl for impl in _IMPLS if impl in present]


def markdown_table(found: Results) -> str:
    """Return milliseconds per step, how many times as fast as the best peer that is, and GB.

    No cell is empty: a cell without a time gives the reason, ``-`` means not applicable. Lines
    below the table give the reasons for "cannot".
    """
    impls = _impls((*found.rows.values(), *found.refused.values()))
    main = next((impl for impl in _OWN if impl in impls), None)
    peers = [impl for impl in _PEERS if impl in impls]
    compared = main is not None and bool(peers)
    with_memory = any(row["peak_bytes"] for rows in found.rows.values() for row in rows.values())
    head = ["model", "atoms", *(_IMPLS[impl][0] for impl in impls)]
    if compared:
        head.append("faster than the best other")
    if with_memory:
        own_name = [] if main is None else [_IMPLS[main][0].removeprefix("mdcg, ")]
        head.append(f"GB: {', '.join([*own_name, *(['least of the others'] if peers else [])])}")
    lines = [_line(head), "|" + "---|" * len(head)]
    for place in found.places:
        rows = found.rows.get(place, {})
        cells = [f"{_model_name(place[1])}, {place[2]}", f"{place[3]:,}"]
        cells += [_time_cell(found, place, impl) for impl in impls]
        if compared:
            others = [t for impl in peers if (t := found.milliseconds(place, impl)) is not None]
            own = found.milliseconds(place, str(main))
            cells.append(f"{min(others) / own:.1f}x" if others and own is not None else "-")
        if with_memory:
            sizes = [] if main is None else [_memory(rows.get(main))]
            if peers:
                known = [n for impl in peers if (n := _memory(rows.get(impl))) is not None]
                sizes.append(min(known, default=None))
            cells.append(", ".join("-" if n is None else format_number(n, 2) for n in sizes))
        lines.append(_line(cells))
    reasons = {
        f"- {_IMPLS[impl][0]}: {reason}": None
        for place in found.places
        for impl, reason in found.refused.get(place, {}).items()
        if impl in _IMPLS and _cell_without_time(reason) == "cannot"
    }
    return "\n".join([*lines, *(["", *reasons] if reasons else [])])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _model_name(model: str) -> str:
    """Return the published name for a model with random weights."""
    if model in ("small", "medium", "large"):
        return f"MACE {model}"
    if model.startswith("nequip-") and "." not in model:
        return f"NequIP {model.removeprefix('nequip-').upper()}"
    return model


def _time_cell(found: Results, place: Place, impl: str) -> str:
    time = found.milliseconds(place, impl)
    if time is not None:
        return format_number(time)
    reason = found.refused.get(place, {}).get(impl)
    return "not run" if reason is None else _cell_without_time(reason)


def _cell_without_time(reason: str) -> str:
    if "out of memory" in reason.lower():
        return "no memory"
    return "-" if reason.endswith("models only") else "cannot"


def _memory(row: Row | None) -> float | None:
    """Return GB."""
    return None if row is None or not row["peak_bytes"] else float(row["peak_bytes"]) / 1e9


def draw(path: str, found: Results, model: str | None = None, dtype: str | None = None) -> None:
    """Draw milliseconds per step against atoms, and atoms that fit a card against bytes per atom.

    The second panel, which needs memory in the results, divides the memory of a card by what the
    largest system takes per atom. The suffix of `path` sets the format. Default: the model and type
    measured at most sizes. `ValueError` if there is none, the format is unknown, or the file cannot
    be written.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sizes: dict[tuple[str, str, str], list[int]] = {}
    for system, name, kind, atoms in found.rows:
        if model in (None, name) and dtype in (None, kind):
            sizes.setdefault((system, name, kind), []).append(atoms)
    if not sizes:
        known = ", ".join(dict.fromkeys(f"{place[1]} {place[2]}" for place in found.rows))
        wanted = " ".join(filter(None, (model or "any model", dtype)))
        raise ValueError(f"there are no times of {wanted}, only of {known}")
    chosen = max(sizes, key=lambda each: len(sizes[each]))
    places = [(*chosen, atoms) for atoms in sorted(sizes[chosen])]
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    impls = _impls(found.rows[place] for place in places)
    memory = {impl: _bytes_per_atom(found, places, impl) for impl in impls}
    per_step, *others = figure.subplots(1, 2 if any(memory.values()) else 1, squeeze=False)[0]
    for impl in impls:
        label, colour, marker = _IMPLS[impl]
        style: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "markersize": 5,
            "linewidth": 2.2 if impl in _OWN[:2] else 1.4,
            "zorder": 3 if impl in _OWN[:2] else 2,
        }
        times = {place[3]: found.milliseconds(place, impl) for place in places}
        points = [(atoms, time) for atoms, time in times.items() if time is not None]
        label = _with_version(label, impl, found.packages)
        per_step.plot([a for a, _ in points], [t for _, t in points], label=label, **style)
        for axes in others if memory[impl] else ():
            kilobytes, fit = memory[impl] / 1e3, _CARD_BYTES / memory[impl]
            axes.plot([kilobytes], [fit], **style)
            text = {"textcoords": "offset points", "fontsize": 8, "color": colour}
            axes.annotate(f"{float(f'{fit:.2g}'):,.0f}", (kilobytes, fit), xytext=(6, 3), **text)
    fitting = f"atoms that fit {_CARD_BYTES / 1e9:.0f} GB"
    labels = (("milliseconds per step", "atoms"), (fitting, "kB per atom"))
    for axes, (what, below) in zip((per_step, *others), labels, strict=False):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(below)
        axes.set_title(what, fontsize=10, loc="left")
        axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.tick_params(labelsize=8)
    first = next(iter(found.rows[places[0]].values()))
    what = "energy, forces and stress" if first.get("stress") else "energy and forces"
    if found.benchmark == "dynamics":
        what = "molecular dynamics"
    figure.suptitle(
        f"{_model_name(chosen[1])}, {chosen[2]}, {chosen[0]}: {what}; {', '.join(found.hardware)}",
        fontsize=11,
    )
    figure.legend(loc="outside lower center", ncols=min(len(impls), 4), frameon=False, fontsize=9)
    # the same numbers give the same file
    with matplotlib.rc_context({"svg.hashsalt": "mdcg", "svg.fonttype": "path"}):
        metadata = {"Date": None} if path.endswith(".svg") else None
        try:
            figure.savefig(path, dpi=150, metadata=metadata)
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error}") from error


def _bytes_per_atom(found: Results, places: Sequence[Place], impl: str) -> float:
    """Return what the largest system takes per atom, or 0 if that is not known."""
    rows = [row for place in places if (row := found.rows[place].get(impl)) and row["peak_bytes"]]
    return float(rows[-1]["peak_bytes"]) / int(rows[-1]["atoms"]) if rows else 0.0


def _with_version(label: str, impl: str, packages: Mapping[str, str]) -> str:
    version = packages.get(_PACKAGES.get(impl, ""))
    return f"{label} {version}" if version else label
