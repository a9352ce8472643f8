"""Tables and JSON of benchmark results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .. import env
from .._version import __version__
from ..errors import format_table, installed_version
from .timing import scatters

Row = Mapping[str, Any]

_PACKAGES = (
    *("torch", "e3nn", "mace-torch", "nequip", "sevenn", "nequix", "cuequivariance"),
    *("cuequivariance-ops-torch-cu12", "cuequivariance-ops-torch-cu13", "openequivariance"),
    *("flashTP_e3nn", "fastmace", "symmetrix-xl"),
)


def document(kind: str, options: Row, cuda: Any = None) -> dict[str, Any]:
    """Return the start of a JSON document, with empty ``rows`` and ``refused``.

    `cuda` is ``torch.cuda`` if torch is used.
    """
    machine: dict[str, Any] = {"cpu": env.cpu_name()}
    if options["device"] == "cuda" and cuda is not None:
        machine["gpu"] = str(cuda.get_device_name())
    found_versions = {package: installed_version(package) for package in _PACKAGES}
    machine["packages"] = {name: number for name, number in found_versions.items() if number}
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    found = {"benchmark": kind, "created": created, "mdcg": __version__, "machine": machine}
    plain = {name: value for name, value in options.items() if not callable(value)}
    return {**found, "options": plain, "rows": [], "refused": []}


def header(found: Row) -> str:
    """Return the heading of the output: versions, machine and method."""
    machine, options = found["machine"], found["options"]
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    where = f"{machine['cpu']}, threads: {options['threads']}"
    where = f"{machine['gpu']} ({where})" if "gpu" in machine else where
    return (
        f"mdcg {found['mdcg']} bench {found['benchmark']} on {where}; {packages}\n"
        "times: median and quartiles of runs in turns in one process; "
        "peak memory: inputs and everything above them"
    )


def model_table(section: Row, model: str, system: str) -> str:
    """Show one model on one structure: a title, and a row per implementation."""
    rows = section["rows"]
    refused = [f"  {one['impl']}: {one['reason']}" for one in section["refused"]]
    if not rows:
        return "\n".join(refused)
    without = [row["impl"] for row in rows if not row["stress"]]
    wanted = "energy and forces" if without else "energy, forces and stress"
    if 0 < len(without) < len(rows):
        wanted += f" (and stress, but not {', '.join(without)})"
    atoms, edges = section["atoms"], section["edges"]
    size = f"{atoms} atoms" + (f", {edges} edges ({edges / atoms:.1f} per atom)" if edges else "")
    title = (
        f"{model}  {section['dtype']}  {section['model_class']}, r_max {section['r_max']:g} Å; "
        f"{wanted}\n  {system}, {size}"
    )
    columns = (
        *("impl", "ms/step", "quartiles", "µs/atom", "vs original", "max |dF|", "to float64"),
        "peak MB",
    )
    lines = [
        [
            row["impl"],
            *milliseconds(row["seconds"]),
            format_number(1e6 * row["seconds"]["median"] / atoms),
            f"{row['speedup']:.1f}x" if row.get("speedup") else "-",
            *(
                f"{row[name]:.1e}" if name in row else "-"
                for name in ("forces_difference_original", "forces_difference_float64")
            ),
            format_number(row["peak_bytes"] / 1e6) if row["peak_bytes"] else "-",
        ]
        for row in rows
    ]
    notes = [f"  {row['impl']}: {row['note']}" for row in rows if "note" in row]
    notes += scatter_note([(row["impl"], row["seconds"]) for row in rows])
    return "\n".join([title, numbers_table(columns, lines), *notes, *refused])


def milliseconds(seconds: Row) -> list[str]:
    """Return the cells for median and quartiles."""
    low, middle, high = (
        format_number(1e3 * seconds[name]) for name in ("quartile1", "median", "quartile3")
    )
    return [middle, f"{low}-{high}"]


def scatter_note(times: Iterable[tuple[str, Row]]) -> list[str]:
    """Return a line about samples that scatter, if any do."""
    found = ", ".join(
        f"{name} {milliseconds(each)[1]} ms" for name, each in times if scatters(each)
    )
    if not found:
        return []
    return [
        f"  no ratio where samples scatter (quartiles: {found}): stop what else runs on this "
        "machine, and measure again"
    ]


def numbers_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align text columns: the first to the left, the others to the right."""
    return format_table(columns, rows, right=range(1, len(columns)), indent="  ")


def format_number(value: float, digits: int = 3) -> str:
    """Round to significant digits, without exponents for ordinary sizes."""
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.1e}"
    size = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, digits - size)}f}"


def write_json(path: str, found: Row) -> None:
    """Write a document, whole or not at all."""
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    partial.write_text(json.dumps(found, indent=1) + "\n")
    partial.replace(target)
