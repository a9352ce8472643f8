"""Writes packages by hand, for tests of single layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdcg.package import Package


class SmallPackage:
    """Layers and tensors of a package.

    Parameters
    ----------
    type_names : list of str
    r_max : float
        Å.
    dtype : {"float32", "float64"}
    """

    def __init__(self, type_names: list[str], r_max: float, dtype: str = "float64") -> None:
        self.manifest: dict[str, Any] = {
            "format": 3,
            "mdcg_version": "0",
            "architecture": "mace",
            "model_class": "test",
            "type_names": type_names,
            "atomic_numbers": None,
            "r_max": r_max,
            "dtype": dtype,
            "energy_unit": "eV",
            "length_unit": "angstrom",
            "head": None,
            "edge_vector": "receiver_minus_sender",
            "source": {"name": "test", "sha256": ""},
            "verification": None,
            "options": {},
            "values": {},
            "layers": [],
            "descriptors": [],
        }
        self.tensors: dict[str, NDArray[Any]] = {}

    def tensor(self, array: Any, dtype: str = "float64") -> str:
        """Store an array; return its name."""
        name = f"t{len(self.tensors)}"
        self.tensors[name] = np.ascontiguousarray(np.asarray(array).astype(dtype))
        return name

    def weights(self, array: Any) -> str:
        """Store an array in the precision of the package; return its name."""
        return self.tensor(array, self.manifest["dtype"])

    def value(self, name: str, irreps: str) -> str:
        """Declare a value; return its name."""
        self.manifest["values"][name] = irreps
        return name

    def layer(self, kind: str, /, **fields: Any) -> int:
        """Append a layer; return its number."""
        self.manifest["layers"].append({"type": kind, **fields})
        return len(self.manifest["layers"]) - 1

    def write(self, path: Path) -> str:
        """Write the file, right or wrong; return its path."""
        Package(self.manifest, self.tensors).save(path)
        return str(path)


RADIAL_KINDS = ("silu", "norms", "tables", "flat", "free", "wide")


def _norm(package: SmallPackage, rng: Any, n: int) -> dict[str, Any]:
    return {
        "weight": package.weights(1.0 + 0.3 * rng.normal(size=n)),
        "bias": package.weights(0.3 * rng.normal(size=n)),
        "epsilon": 1e-5,
    }


def radial_network(kind: str, package: SmallPackage, rng: Any) -> dict[str, Any]:
    """Return a radial network whose last layer copies its inputs (and shows its bias)."""
    manifest = package.manifest
    r_max, num_types = manifest["r_max"], len(manifest["type_names"])
    square = (num_types, num_types)
    r_0 = package.tensor(0.5 + rng.uniform(size=square))
    bessel = {
        "kind": "bessel",
        "weights": package.tensor(np.pi * np.arange(1, 6) / r_max),
        "prefactor": 0.7,
    }

    def layer(n: int, m: int, **fields: Any) -> dict[str, Any]:
        weight = package.weights(rng.normal(size=(n, m)) / np.sqrt(n))
        return {"weight": weight, **fields}

    def bias(n: int) -> str:
        return package.weights(rng.normal(size=n))

    def last(n: int) -> dict[str, Any]:
        return {"weight": package.weights(np.eye(n))}

    found: dict[str, Any] = {
        "r_max": r_max,
        "transform": None,
        "basis": bessel,
        "cutoff": {"kind": "polynomial", "p": 6},
        "cutoff_on": "basis",
        "table": None,
    }
    if kind == "silu":
        found["layers"] = [
            layer(5, 9, activation="silu", factor=1.6),
            layer(9, 18, activation="tanh", bias=bias(18)),
            last(18),
        ]
    elif kind == "norms":
        found["basis"] = {
            "kind": "gaussian",
            "centers": package.tensor(np.linspace(0.0, r_max, 7)),
            "coefficient": -1.3,
        }
        found["transform"] = {"kind": "soft", "alpha": 4.0, "r_0": r_0}
        found["cutoff_on"] = "weights"
        found["layers"] = [
            layer(7, 33, bias=bias(33), layer_norm=_norm(package, rng, 33), activation="silu"),
            layer(33, 6, layer_norm=_norm(package, rng, 6), activation="ssp", factor=1.1),
            {**last(6), "bias": bias(6)},
        ]
    elif kind == "tables":
        found["basis"] = {"kind": "chebyshev", "order": 6, "argument": "normalized"}
        found["r_max"] = package.tensor(rng.uniform(1.5, r_max, size=square))
        found["cutoff"] = {"kind": "polynomial", "p": 5.5}
        found["layers"] = [layer(6, 12, activation="sigmoid", bias=bias(12)), last(12)]
        found["sender"] = package.weights(rng.normal(size=(num_types, 12)))
        found["receiver"] = package.weights(rng.normal(size=(num_types, 12)))
    elif kind == "flat":
        found["transform"] = {"kind": "agnesi", "a": 1.08, "q": 0.92, "p": 4.58, "r_0": r_0}
        found["r_max"] = package.tensor(rng.uniform(1.5, r_max, size=square))
        found["cutoff_on"] = "weights"
        found["layers"] = [{**last(5), "bias": bias(5)}]
    elif kind == "wide":  # more shared memory than every device has without asking
        found["layers"] = [layer(5, 640, activation="silu"), layer(640, 5), last(5)]
    elif kind == "free":
        found["cutoff"] = None
        found["layers"] = [layer(5, 30, activation="relu", bias=bias(30)), last(30)]
    else:
        raise ValueError(kind)
    return found
