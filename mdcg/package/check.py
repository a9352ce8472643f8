"""See that a manifest describes a program that can be evaluated, before anybody tries."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MdcgError, PackageError
from ..problem import ConvProblem, SymmetricContractionProblem
from ..problem.irreps import Irreps
from . import limits
from .activations import ACTIVATIONS
from .cuda_kernels import ARGUMENTS, PASSES

__all__ = ["check_manifest", "check_tensors"]

Declared = Mapping[str, tuple[str, tuple[int, ...]]]

_UNITS = {"energy_unit": "eV", "length_unit": "angstrom"}
_DTYPES = {"float32": "F32", "float64": "F64"}
# transforms of the length and their numbers
_TRANSFORMS: dict[str, tuple[str, ...]] = {
    "agnesi": ("a", "q", "p"),
    "soft": ("alpha",),
}


def check_manifest(
    manifest: Mapping[str, Any],
    tensors: Declared,
    numbers: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Check the manifest of a package against the types and shapes of its tensors.

    Parameters
    ----------
    manifest : mapping
    tensors : mapping of str to (str, tuple of int)
        Types and shapes.
    numbers : mapping of str to array, optional
        The tensors themselves; without them, cutoffs of pairs of types are not looked at.

    Raises
    ------
    PackageError
        One sentence that says what is wrong.
    """
    try:
        _Checker(manifest, tensors, numbers or {}).run()
    except PackageError:
        raise
    except KeyError as error:
        raise PackageError(f"the manifest lacks {error}") from error
    except RecursionError as error:
        raise PackageError("the manifest nests too deep") from error
    except (ValueError, TypeError, AttributeError, IndexError, OverflowError, MdcgError) as error:
        raise PackageError(f"the manifest makes no sense: {str(error)[:200]}") from error


def check_tensors(tensors: Mapping[str, NDArray[Any]]) -> None:
    """Check that all numbers are finite.

    Raises
    ------
    PackageError
    """
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise PackageError(f"tensor {name!r} has entries that are not finite")


class _Checker:
    def __init__(
        self, manifest: Mapping[str, Any], tensors: Declared, numbers: Mapping[str, NDArray[Any]]
    ) -> None:
        self.manifest, self.tensors, self.numbers = manifest, tensors, numbers
        self.rows: dict[str, Irreps] = {}
        self.written: set[str] = set()
        self.where = "the manifest"
        self.n_types = 0
        self.r_max = 0.0
        self.short = ""

    def need(self, condition: bool, what: str) -> None:
        if not condition:
            raise PackageError(f"{self.where}: {what}")

    def run(self) -> None:
        manifest = self.manifest
        names = manifest["type_names"]
        self.need(
            isinstance(names, list)
            and 0 < len(names) <= limits.MAX_TYPES
            and len(set(names)) == len(names),
            f"type_names are {str(names)[:80]}, expected different names",
        )
        self.need(all(isinstance(name, str) and name for name in names), "a type has no name")
        self.n_types = len(names)
        numbers = manifest["atomic_numbers"]
        if numbers is not None:
            good = isinstance(numbers, list) and len(numbers) == len(names)
            good = good and all(
                type(z) is int and 0 <= z <= limits.MAX_ATOMIC_NUMBER for z in numbers
            )
            self.need(good, f"atomic_numbers are {str(numbers)[:80]}, expected one for each type")
        self.r_max = self.number(manifest["r_max"], "r_max", above=0.0)
        self.need(self.r_max <= limits.MAX_LENGTH, f"r_max is {self.r_max} Å")
        self.need(manifest["dtype"] in _DTYPES, f"dtype is {manifest['dtype']!r}")
        self.short = _DTYPES[manifest["dtype"]]
        for key, unit in _UNITS.items():
            self.need(manifest[key] == unit, f"{key} is {manifest[key]!r}, expected {unit!r}")
        vector = manifest["edge_vector"]
        self.need(
            vector in ("receiver_minus_sender", "sender_minus_receiver"),
            f"edge_vector is {vector!r}",
        )
        values = manifest["values"]
        self.need(len(values) <= limits.MAX_LAYERS, f"there are {len(values)} values")
        for name, text in values.items():
            irreps = Irreps.parse(text)
            self.need(self.fits(irreps), f"value {name!r} has irreps {text[:80]!r}")
            self.rows[name] = irreps
        layers = manifest["layers"]
        self.need(
            isinstance(layers, list) and len(layers) <= limits.MAX_LAYERS,
            f"layers are no list, or more than {limits.MAX_LAYERS}",
        )
        for number, layer in enumerate(layers):
            self.where = f"layer {number}"
            kind = layer["type"]
            self.where = f"layer {number} ({str(kind)[:40]})"
            check = getattr(self, f"on_{kind}", None) if isinstance(kind, str) else None
            self.need(check is not None, "this version of mdcg has no such layer")
            check(layer)  # type: ignore[misc]
        self.where = "the manifest"
        missing = sorted(set(self.rows) - self.written)
        self.need(not missing, f"no layer writes the value {missing[:1]}")
        kinds = {layer["type"] for layer in layers}
        self.need(bool(kinds & {"energy", "pair_energy"}), "no layer gives an energy")
        descriptors = manifest["descriptors"]
        for name in descriptors:
            self.need(name in self.rows, f"descriptor {name!r} is no value")
        width = sum(self.rows[name].dim for name in descriptors)
        good = len(set(descriptors)) == len(descriptors) and width <= limits.MAX_ROW_ITEMS
        self.need(good, f"descriptors are {str(descriptors)[:80]}, expected different values")
        for kernel in manifest["kernels"]:
            self.need(self.tensors[kernel["source"]][0] == "U8", "a kernel's source is no text")
        for number, kernel in enumerate(manifest.get("cuda_kernels", ())):
            self.where = f"CUDA kernel {number}"
            self.cuda_kernel(kernel, {layer.get("name"): layer["type"] for layer in layers})
        for number, binary in enumerate(manifest.get("cuda_binaries", ())):
            self.where = f"CUDA binary {number}"
            self.cuda_target(binary["target"])
            name = binary["tensor"]
            self.need(self.is_bytes(name), f"tensor {str(name)[:80]!r} is no machine code")
            for field in ("key", "sha256"):
                self.need(isinstance(binary[field], str), f"it has no {field}")

    def is_bytes(self, name: object) -> bool:
        return isinstance(name, str) and name in self.tensors and self.tensors[name][0] == "U8"

    def cuda_target(self, target: object) -> None:
        good = isinstance(target, str) and bool(re.fullmatch(r"sm_\d{2,3}", target))
        self.need(good, f"target is {str(target)[:40]!r}, expected one such as 'sm_90'")

    def cuda_kernel(self, kernel: Mapping[str, Any], types: Mapping[str, str]) -> None:
        layer, programs = kernel["layer"], kernel["programs"]
        self.need(layer in types, f"there is no layer {str(layer)[:80]!r}")
        self.need(kernel["pass"] in PASSES, f"pass is {str(kernel['pass'])[:40]!r}")
        known = ARGUMENTS.get(types[layer], set())
        for name in kernel["arguments"]:
            self.need(name in known, f"no {types[layer]} has an operand {str(name)[:40]!r}")
        for name in kernel["zeroed"]:
            self.need(name in ("out", "dx", "dy"), f"{str(name)[:40]!r} cannot be zeroed")
        for name in programs:
            self.need(self.is_bytes(name), f"program {str(name)[:80]!r} is no text")
        self.cuda_target(kernel["target"])
        self.need(bool(kernel["entries"]), "there are no entries")
        for entry in kernel["entries"]:
            self.need(isinstance(entry["name"], str), "an entry has no name")
            for field, low, high in (
                ("program", 0, len(programs) - 1),
                ("threads", 32, 1024),
                ("shared_bytes", 0, 1 << 18),
                ("rows", 1, 1024),
            ):
                value = entry[field]
                good = type(value) is int and low <= value <= high
                self.need(good, f"{field} is {str(value)[:40]}, expected {low} to {high}")
        good = type(kernel["run"]) is int and 1 <= kernel["run"] <= limits.MAX_MULTIPLICITY
        self.need(good, f"run is {str(kernel['run'])[:40]}")
        if "degree" in kernel:
            degree = kernel["degree"]
            good = type(degree) is int and 5 <= degree <= 15 and degree % 2 == 1
            self.need(good, f"degree is {str(degree)[:40]}, expected an odd number from 5 to 15")

    # ---- pieces ----

    def number(self, value: Any, name: str, above: float = -math.inf) -> float:
        good = type(value) in (int, float) and math.isfinite(value) and value > above
        self.need(good, f"{name} is {str(value)[:40]}, expected a finite number above {above}")
        return float(value)

    def fits(self, irreps: Irreps) -> bool:
        """Return whether rows of these irreps, padded to 64 bytes, are such as the engine has."""
        align = 16 if self.short == "F32" else 8
        items = sum(-(-block.mul // align) * align * block.ir.dim for block in irreps)
        return (
            all(block.mul <= limits.MAX_MULTIPLICITY for block in irreps)
            and all(block.ir.l <= limits.MAX_DEGREE for block in irreps)
            and irreps.dim > 0
            and items <= limits.MAX_ROW_ITEMS
        )

    def read(self, name: Any) -> Irreps:
        self.need(isinstance(name, str) and name in self.rows, f"{str(name)[:80]!r} is no value")
        self.need(name in self.written, f"the value {name!r} is read before it is written")
        return self.rows[name]

    def write(self, layer: Mapping[str, Any], irreps: Irreps | None = None) -> Irreps:
        name = layer["out"]
        self.need(isinstance(name, str) and name in self.rows, f"{str(name)[:80]!r} is no value")
        self.need(name not in self.written, f"the value {name!r} is written twice")
        self.written.add(name)
        if irreps is not None:
            self.need(
                self.rows[name] == irreps, f"{name!r} is {self.rows[name]}, expected {irreps}"
            )
        return self.rows[name]

    def tensor(self, name: Any, *shapes: tuple[int, ...], dtype: str = "") -> tuple[int, ...]:
        """See that a tensor is there and has one of some shapes; -1 stands for any length."""
        self.need(
            isinstance(name, str) and name in self.tensors, f"tensor {str(name)[:80]!r} is missing"
        )
        found, shape = self.tensors[name]
        dtype = dtype or self.short
        self.need(found == dtype, f"tensor {name!r} is {found}, expected {dtype}")
        fits = any(
            len(shape) == len(want) and all(w in (-1, n) for n, w in zip(shape, want, strict=True))
            for want in shapes
        )
        self.need(fits, f"tensor {name!r} has shape {list(shape)}, expected {list(shapes[0])}")
        return shape

    def table(self, name: Any, irreps: Irreps) -> None:
        self.tensor(name, (self.n_types, irreps.dim))

    def block(self, irreps: Irreps, index: Any, name: str) -> Any:
        good = type(index) is int and 0 <= index < len(irreps)
        self.need(good, f"{name} is {str(index)[:40]}, expected a block of {irreps}")
        return irreps[index]

    def activation(self, entry: Mapping[str, Any]) -> None:
        name = entry["activation"]
        self.need(name in ACTIVATIONS, f"activation {str(name)[:40]!r} is unknown")
        self.number(entry["factor"], "factor")

    def per_type(self, name: Any, dtype: str = "") -> None:
        self.tensor(name, (self.n_types,), (1,), dtype=dtype)

    def power(self, p: Any) -> None:
        least, most = limits.MIN_CUTOFF_POWER, limits.MAX_CUTOFF_POWER
        good = least <= self.number(p, "p") <= most
        self.need(good, f"p is {p}, expected {least:g} to {most:g}")

    def cutoffs(self, value: Any) -> None:
        """See that cutoffs, one or one for each pair of types, are not beyond the package's."""
        largest, least = value, value
        if isinstance(value, str):
            self.tensor(value, (self.n_types, self.n_types), dtype="F64")
            if value not in self.numbers:
                return
            largest, least = float(self.numbers[value].max()), float(self.numbers[value].min())
        self.number(least, "r_max", above=0.0)
        self.need(
            largest <= self.r_max * (1.0 + limits.LENGTH_TOLERANCE),
            f"r_max is {largest} Å, expected at most the package's, {self.r_max} Å",
        )

    # ---- layers ----

    def on_type_rows(self, layer: Mapping[str, Any]) -> None:
        self.table(layer["table"], self.write(layer))

    def on_linear(self, layer: Mapping[str, Any]) -> None:
        into = self.read(layer["x"])
        out = self.write(layer)
        seen = set()
        for path in layer["paths"]:
            a = self.block(into, path["in"], "in")
            b = self.block(out, path["out"], "out")
            self.need(a.ir == b.ir, f"a path leads from {a} to {b}")
            key = (path["in"], path["out"])
            self.need(key not in seen, f"two paths lead from block {key[0]} to {key[1]}")
            seen.add(key)
            self.tensor(path["weight"], (a.mul, b.mul), (self.n_types, a.mul, b.mul))
        for bias in layer["bias"]:
            b = self.block(out, bias["out"], "out")
            self.need(b.ir.l == 0, f"a bias is added to {b}")
            self.tensor(bias["value"], (b.mul,), (self.n_types, b.mul))

    def on_conv(self, layer: Mapping[str, Any]) -> None:
        problem = ConvProblem.from_json(layer["problem"])
        self.need(("x" in layer) != ("x_table" in layer), "expected either x or x_table")
        if "x" in layer:
            x = self.read(layer["x"])
            self.need(x == problem.irreps_in1, f"x is {x}, expected {problem.irreps_in1}")
        else:
            self.table(layer["x_table"], problem.irreps_in1)
        degrees = [(block.mul, block.ir.l) for block in problem.irreps_in2]
        self.need(
            degrees == [(1, l) for l in range(len(degrees))]
            and len(degrees) <= limits.MAX_HARMONICS_DEGREE + 1,
            f"harmonics are {problem.irreps_in2}, expected one of each degree",
        )
        good = all(path.mode == "uvu" and path.has_weight for path in problem.paths)
        self.need(
            good and 0 < len(problem.paths) <= limits.MAX_PATHS,
            "the problem has no paths, too many, or others than uvu",
        )
        self.need(problem.dtype == self.manifest["dtype"], f"the problem is {problem.dtype}")
        (nnz, _) = self.tensor(layer["nonzeros"], (-1, 4), dtype="I32")
        self.tensor(layer["values"], (nnz,), dtype="F64")
        self.radial(layer["radial"], problem.weight_numel)
        self.write(layer, problem.irreps_out)

    def radial(self, radial: Mapping[str, Any], outputs: int) -> None:
        self.cutoffs(radial["r_max"])
        transform, basis, cutoff = radial["transform"], radial["basis"], radial["cutoff"]
        if transform is not None:
            kind = transform["kind"]
            self.need(kind in _TRANSFORMS, f"transform {kind!r}")
            for name in _TRANSFORMS[kind]:
                self.number(transform[name], name)
            self.tensor(transform["r_0"], (self.n_types, self.n_types), dtype="F64")
        kind = basis["kind"]
        self.need(kind in ("bessel", "gaussian", "chebyshev"), f"basis {str(kind)[:40]!r}")
        if kind == "chebyshev":
            size = basis["order"]
            self.need(
                type(size) is int and 0 < size <= limits.MAX_CHEBYSHEV_ORDER,
                f"order is {str(size)[:40]}",
            )
        else:
            words = ("weights", "prefactor") if kind == "bessel" else ("centers", "coefficient")
            (size,) = self.tensor(basis[words[0]], (-1,), dtype="F64")
            self.number(basis[words[1]], words[1])
        argument = basis.get("argument", "length")
        self.need(argument in ("length", "normalized"), "argument is neither of two")
        if cutoff is not None:
            self.need(cutoff["kind"] == "polynomial", f"cutoff {str(cutoff['kind'])[:40]!r}")
            self.power(cutoff["p"])
        self.need(radial["cutoff_on"] in ("basis", "weights"), "cutoff_on is neither of two")
        count = len(radial["layers"])
        self.need(0 < count <= limits.MAX_RADIAL_LAYERS, f"the radial network has {count} layers")
        for number, entry in enumerate(radial["layers"]):
            _, width = self.tensor(entry["weight"], (size, -1))
            self.need(0 < width <= limits.MAX_RADIAL_WIDTH, f"a radial layer has {width} outputs")
            size = width
            if "bias" in entry:
                self.tensor(entry["bias"], (width,))
            if "layer_norm" in entry:
                for word in ("weight", "bias"):
                    self.tensor(entry["layer_norm"][word], (width,))
                self.number(entry["layer_norm"]["epsilon"], "epsilon", above=0.0)
            if "activation" in entry:
                self.activation(entry)
            if not number:
                for end in ("sender", "receiver"):
                    self.end(radial.get(end), width)
        last = radial["layers"][-1]
        self.need(size == outputs, f"the radial network has {size} outputs, expected {outputs}")
        self.need(
            "activation" not in last and "layer_norm" not in last, "the last layer is activated"
        )
        if radial["table"] is not None:
            knots = radial["table"]["knots"]
            good = type(knots) is int and limits.MIN_KNOTS <= knots <= limits.MAX_KNOTS
            self.need(good, f"{str(knots)[:40]} knots")

    def end(self, name: Any, width: int) -> None:
        if name is None:
            return
        if name in self.tensors:
            self.tensor(name, (self.n_types, width))
        else:
            irreps = self.read(name)
            good = irreps.dim == width and all(block.ir.l == 0 for block in irreps)
            self.need(good, f"{name!r} is {irreps}, expected {width} scalars")

    def on_edge_sum(self, layer: Mapping[str, Any]) -> None:
        self.need(layer["activation"] in ("tanh_square", "none"), "activation is unknown")
        out = self.write(layer)
        self.need(all(block.ir.l == 0 for block in out), f"out is {out}, expected scalars")
        self.radial(layer["radial"], out.dim)

    def on_normalize(self, layer: Mapping[str, Any]) -> None:
        x, density = self.read(layer["x"]), self.read(layer["density"])
        self.need(density.dim == 1, f"density is {density}, expected 1x0e")
        for name in ("alpha", "beta"):
            self.number(layer[name], name)
        self.write(layer, x)

    def on_scale(self, layer: Mapping[str, Any]) -> None:
        self.per_type(layer["factor"])
        self.write(layer, self.read(layer["x"]))

    def on_contraction(self, layer: Mapping[str, Any]) -> None:
        problem = SymmetricContractionProblem.from_json(layer["problem"])
        x = self.read(layer["x"])
        self.need(x == problem.irreps_in, f"x is {x}, expected {problem.irreps_in}")
        rest = (problem.num_coefficients, problem.channels)
        self.tensor(layer["coefficients"], (self.n_types, *rest), (1, *rest))
        self.need(problem.dtype == self.manifest["dtype"], f"the problem is {problem.dtype}")
        self.write(layer, problem.irreps_out)

    def on_gate(self, layer: Mapping[str, Any]) -> None:
        x, out = self.read(layer["x"]), self.write(layer)
        seen = []
        for entry in layer["scalars"]:
            a = self.block(x, entry["in"], "in")
            b = self.block(out, entry["out"], "out")
            self.need(a.ir.l == b.ir.l == 0 and a.mul == b.mul, f"a scalar {a} becomes {b}")
            self.activation(entry)
            seen.append(entry["out"])
        for entry in layer["gated"]:
            a = self.block(x, entry["in"], "in")
            b = self.block(out, entry["out"], "out")
            gate = self.block(x, entry["gate"], "gate")
            first = entry["gate_offset"]
            self.need(a.ir.l == b.ir.l and a.mul == b.mul, f"a block {a} becomes {b}")
            good = type(first) is int and 0 <= first <= gate.mul - a.mul and gate.ir.l == 0
            self.need(good, f"gates of {a} start at {str(first)[:40]} of {gate}")
            self.activation(entry)
            seen.append(entry["out"])
        self.need(sorted(seen) == list(range(len(out))), f"blocks {seen} of {out} are written")

    def on_product(self, layer: Mapping[str, Any]) -> None:
        x, y = self.read(layer["x"]), self.read(layer["y"])
        self.need(x == y, f"factors are {x} and {y}")
        self.write(layer, x)

    def on_sum(self, layer: Mapping[str, Any]) -> None:
        terms = [self.read(name) for name in layer["x"]]
        self.need(bool(terms) and all(term == terms[0] for term in terms), "terms differ")
        self.write(layer, terms[0])

    def on_exchange(self, layer: Mapping[str, Any]) -> None:
        self.read(layer["x"])

    def on_energy(self, layer: Mapping[str, Any]) -> None:
        x, channel = self.read(layer["x"]), layer["channel"]
        good = type(channel) is int and 0 <= channel < x[0].mul and x[0].ir.l == 0
        self.need(good, f"channel {str(channel)[:40]} is no scalar of {x}")
        for name in ("scale", "shift"):
            self.per_type(layer[name], dtype="F64")

    def on_pair_energy(self, layer: Mapping[str, Any]) -> None:
        self.need(layer["kind"] == "zbl", f"kind is {str(layer['kind'])[:40]!r}, expected zbl")
        for name in ("factor", "a", "r_max"):
            self.tensor(layer[name], (self.n_types, self.n_types), dtype="F64")
        lists = [layer["coefficients"], layer["exponents"]]
        self.need(
            len(lists[0]) == len(lists[1]) <= limits.MAX_SCREENING_TERMS,
            "coefficients and exponents differ in number, or are too many",
        )
        for value in (*lists[0], *lists[1]):
            self.number(value, "a coefficient")
        self.power(layer["p"])
