"""``mdcg-patch --info FILE.mdcg``: the contents of the manifest, read without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import PackageError, printable

__all__ = ["describe_package"]

_LABELS = ("layer", "type", "in", "out", "kernel")
_AGAIN = "copy the file again, or convert the checkpoint again"


def describe_package(path: Path) -> tuple[dict[str, Any], str]:
    """Return the description as JSON and as text, without executing anything from the package.

    Raises
    ------
    PackageError
        The file is damaged, or of a newer version.
    """
    from ..package.file import read_header

    manifest, tensors = read_header(path)
    try:
        return _describe(path, manifest, tensors)
    except KeyError as error:
        raise PackageError(f"{path}: the manifest lacks {error}: {_AGAIN}") from error
    except (ValueError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise PackageError(
            f"{path}: the manifest is invalid ({str(error)[:200]}): {_AGAIN}"
        ) from error


def _describe(
    path: Path, manifest: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...]]]
) -> tuple[dict[str, Any], str]:
    names = [str(name) for name in manifest.get("type_names", [])]
    listing = " ".join(names) if len(names) <= 12 else f"{len(names)} types"
    head = manifest.get("head")
    facts = [
        f"{manifest.get('model_class')} ({manifest.get('architecture')})",
        listing,
        f"r_max {manifest.get('r_max')} Å",
        str(manifest.get("dtype")),
    ]
    if head is not None:
        facts.append(f"head: {head}")
    lines = [f"{printable(path.name)}: {', '.join(facts)}"]
    lines.append(f"package format {manifest['format']}, mdcg {manifest.get('mdcg_version')}")
    source = manifest.get("source")
    if isinstance(source, dict):
        lines.append(f"made from {source.get('name')} (sha256 {str(source.get('sha256'))[:16]}…)")
    rows = _rows(manifest)
    lines.append(_table(_LABELS, rows))
    lines.append(_verification(manifest.get("verification")))
    weights = sum(_count(shape) for kind, shape in tensors.values() if kind in ("F32", "F64"))
    size = path.stat().st_size
    lines.append(f"{weights} numbers in {len(tensors)} tensors, {size / 1e6:.2f} MB")
    result = {
        "input": str(path),
        "package": {**manifest, "values": manifest.get("values", {})},
        "tensors": {name: [kind, list(shape)] for name, (kind, shape) in tensors.items()},
        "bytes": size,
    }
    return result, "\n".join(lines)


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def _rows(manifest: dict[str, Any]) -> list[tuple[str, ...]]:
    values = manifest.get("values", {})

    def irreps(name: Any) -> str:
        names = name if isinstance(name, list) else [name]
        return " + ".join(str(values.get(each, each)) for each in names[:1])

    rows: list[tuple[str, ...]] = []
    for layer in manifest.get("layers", []):
        into = irreps(layer["x"]) if "x" in layer else ""
        if "x_table" in layer:
            into = "by type"
        out = irreps(layer["out"]) if "out" in layer else ""
        radial = layer.get("radial")
        kernel = "generated" if layer.get("type") in ("conv", "contraction") else ""
        if radial:
            table = radial.get("table")
            text = f"table of {table['knots']} knots" if table else "exact radial network"
            kernel = f"{kernel}, {text}" if kernel else text
        rows.append((str(layer.get("name", "")), str(layer.get("type")), into, out, kernel))
    return rows


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _verification(found: Any) -> str:
    if not isinstance(found, dict):
        return "verification: not verified"
    limits = ", ".join(f"{name} below {value:.0e}" for name, value in found["below"].items())
    return f"verification: {'passed' if found['passed'] else 'failed'} ({limits})"
