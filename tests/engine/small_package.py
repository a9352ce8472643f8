"""Writes packages by hand, for tests of single layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..signing import signed

_NAMES = {"float32": "F32", "float64": "F64", "int32": "I32", "uint8": "U8"}


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
            "format": 2,
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
        """Write a safetensors file; return its path."""
        text = json.dumps(self.manifest, sort_keys=True, separators=(",", ":"))
        header: dict[str, Any] = {"__metadata__": {"mdcg": text}}
        offset = 0
        for name in sorted(self.tensors):
            array = self.tensors[name]
            header[name] = {
                "dtype": _NAMES[str(array.dtype)],
                "shape": list(array.shape),
                "data_offsets": [offset, offset + array.nbytes],
            }
            offset += array.nbytes
        raw = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        data = b"".join(self.tensors[name].tobytes() for name in sorted(self.tensors))
        path.write_bytes(signed(len(raw).to_bytes(8, "little") + raw + data))
        return str(path)
