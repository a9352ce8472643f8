"""``mdcg-patch --info FILE.mdcg``: the contents of the manifest, read without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PackageError, format_table, printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Names of types in the index of a file.
_TYPES = {"float32": "F32", "float64": "F64", "int32": "I32"}
_LABELS = ("layer", "type", "in", "out", "kernel")
_LONG_RANGE = (
    ("sigma", "sigma", "Å"),
    ("dl", "spacing", "Å"),
    ("norm factor", "factor", "eV Å/e²"),
)
_AGAIN = "copy the file again, or convert the checkpoint again"


def describe_package(path: Path) -> tuple[dict[str, Any], str]:
    """Return the description as JSON and as text, without running anything from the package."""
    from ..package.file import read_file

    manifest, tensors = read_file(path)
    try:
        return _describe(path, manifest, tensors)
    except KeyError as error:
        raise PackageError(f"{path}: the manifest lacks {error}: {_AGAIN}") from error
    except (ValueError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise PackageError(
            f"{path}: the manifest is invalid ({str(error)[:200]}): {_AGAIN}"
        ) from error


def _describe(
    path: Path, manifest: dict[str, Any], tensors: dict[str, NDArray[Any]]
) -> tuple[dict[str, Any], str]:
    from ..package.dispersion import training_functional
    from ..package.inputs import input_text

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
    inputs = manifest.get("inputs") or []
    lines += [input_text(each) for each in inputs]
    fixed = None if inputs else (manifest.get("options") or {}).get("graph_fields")
    if fixed:
        lines.append("made for " + ", ".join(f"{name}={value}" for name, value in fixed))
    lines.append(training_functional(head))
    gives = ["energies"] * any(layer[1] in ("energy", "pair_energy") for layer in _rows(manifest))
    gives += [name for name in ("dipoles", "charges") if name in manifest]
    lines.append(f"gives {' and '.join(gives)} of atoms")
    lines += [long_range_text(layer) for layer in long_range_layers(manifest["layers"])]
    lines.append(_dispersion(manifest.get("dispersion")))
    lines.append(format_table(_LABELS, _rows(manifest)))
    lines.append(_verification(manifest.get("verification")))
    weights = sum(tensor.size for tensor in tensors.values() if tensor.dtype.kind == "f")
    size = path.stat().st_size
    lines.append(f"{weights} numbers in {len(tensors)} tensors, {size / 1e6:.2f} MB")
    result = {
        "input": str(path),
        "package": {**manifest, "values": manifest.get("values", {})},
        "tensors": {name: [_TYPES[t.dtype.name], list(t.shape)] for name, t in tensors.items()},
        "bytes": size,
    }
    return result, "\n".join(lines)


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
            text = "exact radial network" if radial.get("table") is None else "table"
            kernel = f"{kernel}, {text}" if kernel else text
        rows.append((str(layer.get("name", "")), str(layer.get("type")), into, out, kernel))
    return rows


def long_range_layers(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the layers that are long-range sums of energies."""
    return [layer for layer in layers if layer["type"] in ("ewald", "reciprocal_energy")]


def long_range_text(layer: dict[str, Any]) -> str:
    """Return a line about a long-range sum."""
    numbers = [f"{name} {layer[key]:g} {unit}" for name, key, unit in _LONG_RANGE]
    kind = "charges" if layer["type"] == "ewald" else "charges and dipoles in each other's fields"
    return f"long range: {kind} with {', '.join(numbers)}, own part {layer['own_part']}"


def _dispersion(found: Any) -> str:
    if not isinstance(found, dict):
        return "dispersion: none (mdcg-patch --dispersion FUNCTIONAL adds D3)"
    dampings = " or ".join(sorted(found["damping"]))
    return f"dispersion: D3 of {found['functional']}, damping {dampings}, {found.get('source')}"


def _verification(found: Any) -> str:
    if not isinstance(found, dict):
        return "verification: not verified"
    below = ", ".join(f"{name} below {value:.0e}" for name, value in found["below"].items())
    verdict = "passed" if found["passed"] else "failed"
    return f"verification: {verdict} (differences nearest to their limits: {below})"
