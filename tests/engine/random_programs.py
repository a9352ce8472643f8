"""Programs drawn by hypothesis: layers of every kind, in any order that the format allows."""

from __future__ import annotations

from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np

from mdcg.package import Package
from mdcg.package.builder import Radial, RadialLayer
from mdcg.package.linear_map import LinearMap
from mdcg.problem import ConvProblem, Irreps

from ..core.contraction_helpers import random_contraction
from .programs import R_MAX, Program

# Irreps of values, by a letter. R and D are densities; R may be negative.
SHAPES = {"S": "3x0e", "V": "3x0e+3x1o", "R": "1x0e", "D": "1x0e"}
# Kinds of layers, each with the letters of the values that it reads and writes.
KINDS: dict[str, tuple[str, str]] = {
    **{f"types_{a}": ("", a) for a in "SV"},
    **{f"edge_sum_{a}": ("", a) for a in "SD"},
    **{f"linear_{a}{b}": (a, b) for a, b in ("SS", "SV", "VS", "VV", "SR")},
    **{f"gate_{a}{b}": (a, b) for a, b in ("SS", "VV", "RD")},
    **{f"{kind}_{a}": (a, a) for kind in ("scale", "sum") for a in "SV"},
    **{f"normalize_{a}": (f"{a}D", a) for a in "SV"},
    **{f"{kind}_S": ("SS", "S") for kind in ("product", "modulate")},
    **{f"dot_{a}": (a + a, "S") for a in "SV"},
    "layer_norm_S": ("S", "S"),
    **{f"rms_norm_{a}": (a, a) for a in "SV"},
    **{f"contraction_{b}": ("V", b) for b in "SV"},
    **{f"conv_{a}{b}": (a, b) for a, b in ("SS", "SV", "VS", "VV")},
    **{f"energy_{a}": (a, "") for a in SHAPES},
    "pair_energy": ("", ""),
}
# Readers of a value: layers on nodes, and the operands of convolutions.
READERS = ("linear", "gate", "scale", "sum", "normalize", "product", "contraction", "energy")
READERS += ("dot", "modulate", "layer_norm", "rms_norm")
READERS += ("conv x", "conv sender", "conv receiver")
CHOICES = [*KINDS, *[kind for kind in KINDS if kind.startswith("conv")] * 4]


@cache
def templates() -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return a layer of each kind, by name, and all tensors."""
    p = Program(2)
    irreps = {a: Irreps.parse(text) for a, text in SHAPES.items()}
    tables = {a: p.table(irreps[a], p.random(2, irreps[a].dim)) for a in SHAPES}
    of = {a: p.stored(table, f"types_{a}") for a, table in tables.items()}

    def radial(outputs: int, on: str = "basis") -> Radial:
        first = RadialLayer(p.random(3, 3), p.random(3), activation="silu", factor=1.5)
        basis = {"kind": "bessel", "weights": np.arange(1, 4) * np.pi / R_MAX, "prefactor": 0.8}
        layers = (first, RadialLayer(p.random(3, outputs) / 3.0))
        return Radial(R_MAX, basis, 5.0, layers, cutoff_on=on)

    p.edge_sum(radial(3, "weights"), "none", "edge_sum_S")
    p.edge_sum(radial(1), "tanh_square", "edge_sum_D")
    for a, b in ("SS", "SV", "VS", "VV", "SR"):  # matrices depend on types if irreps do not change
        shape = (*((2,) if a == b else ()), 3, irreps[b][0].mul)
        weights = {(i, i): p.random(*shape) / 2.0 for i in range(2 if a + b == "VV" else 1)}
        bias = {0: p.random(shape[-1])} if a != b else {}
        p.linear(of[a], LinearMap(irreps[a], irreps[b], weights, bias), f"linear_{a}{b}")
    for a, b in ("SS", "VV", "RD"):
        gated = [(0, 0, 1, 1, "sigmoid", 1.2)] if a == "V" else []
        p.gate(of[a], irreps[b], [(0, 0, "sigmoid", 1.3)], gated, f"gate_{a}{b}")
    for a in "SV":
        p.scale(of[a], p.random(2), f"scale_{a}")
        p.sum([of[a], of[a]], f"sum_{a}")
        p.normalize(of[a], of["D"], 1.5, 0.7, f"normalize_{a}")
        problem = random_contraction(SHAPES["V"], SHAPES[a], 2, per_block=3)
        coefficients = p.random(2, problem.num_coefficients, 3) / 4.0
        p.contraction(of["V"], problem, coefficients, f"contraction_{a}")
    p.product(of["S"], of["S"], "product_S")
    p.modulate(of["S"], of["S"], "modulate_S")
    for a in "SV":
        p.dot(of[a], of[a], f"dot_{a}")
    p.layer_norm(of["S"], p.random(3), p.random(3), 0.5, "layer_norm_S")
    p.rms_norm(of["S"], np.array([0.4]), p.random(3), 0.5, "rms_norm_S")
    p.rms_norm(of["V"], np.array([0.4, 0.2]), p.random(6), 0.5, "rms_norm_V")
    all_paths = {"SS": [(0, 0, 0)], "SV": [(0, 0, 0), (0, 1, 1)], "VS": [(0, 0, 0), (1, 1, 0)]}
    all_paths["VV"] = [*all_paths["VS"], (0, 1, 1), (1, 0, 1)]
    for (a, b), paths in all_paths.items():
        rows = [(*path, "uvu", True) for path in paths]
        problem = ConvProblem.build(SHAPES[a], "1x0e+1x1o", SHAPES[b], rows)
        p.conv(of[a], problem, radial(problem.weight_numel), f"conv_{a}{b}")
    for a in SHAPES:
        p.energy(of[a], p.random(2), p.random(2), f"energy_{a}")
    pair = {
        "factor": np.full((2, 2), 3.0),
        "a": np.full((2, 2), 0.5),
        "r_max": np.full((2, 2), 2.5),
    }
    screening = {"coefficients": [0.3, 0.7], "exponents": [0.4, 1.2], "p": 6}
    p.pair_energy("zbl", {**pair, **screening}, "pair_energy")
    program, tensors = p.finish()
    return {layer["name"]: layer for layer in program["layers"]}, tensors


def operands(layer: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (reader, value) for each operand of a layer."""
    kind, radial = layer["type"], layer.get("radial", {})
    if kind == "exchange":
        return []
    if kind == "conv":
        ends = {"x": layer.get("x"), **{end: radial.get(end) for end in ("sender", "receiver")}}
        return [(f"conv {end}", name) for end, name in ends.items() if name]
    names = [layer.get(key) for key in ("x", "y", "density")]
    names = [*names[0], *names[1:]] if kind == "sum" else names
    return [(kind, name) for name in names if name]


class Drawn:
    """A program that is being drawn; `draw` comes from a composite strategy."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.layers: list[dict[str, Any]] = []
        self.shapes: dict[str, str] = {}  # keys are names of values
        self.moving: set[str] = set()  # values that depend on positions
        self.exchanged: set[str] = set()
        self.found_for_ghosts: set[str] = set()  # read at senders without an exchange

    def flip(self) -> bool:
        return bool(self.draw(st.booleans()))

    def value(self, shape: str) -> str:
        """Draw a value of a shape, preferably one that is exchanged."""
        found = [name for name, own in self.shapes.items() if own == shape]
        found += 3 * [name for name in found if name in self.exchanged]
        if found:
            return str(self.draw(st.sampled_from(found)))
        first = {"S": "edge_sum_S", "V": "conv_SV", "R": "linear_SR", "D": "edge_sum_D"}
        return self.add(first[shape])

    def sent(self, name: str) -> str:
        """Draw a value to be read at senders; exchange it first if it needs that."""
        if name in self.exchanged | self.found_for_ghosts:
            return name
        if name not in self.moving and self.flip():
            self.found_for_ghosts.add(name)
            return name
        writer = next(i for i, layer in enumerate(self.layers) if layer.get("out") == name)
        at = writer + 1 if self.flip() else len(self.layers)
        self.layers.insert(at, {"type": "exchange", "name": f"{name}_exchange", "x": name})
        self.exchanged.add(name)
        return name

    def put(self, kind: str, radial: dict[str, str] | None = None, **fields: Any) -> str:
        """Append a layer; return its value."""
        layer = {**templates()[0][kind], **fields, "name": f"{kind}_{len(self.layers)}"}
        if layer["type"] == "conv":
            ends = {"sender": None, "receiver": None, **(radial or {})}
            layer["radial"] = {**layer["radial"], **ends}
            layer.pop("x" if "x_table" in fields else "x_table", None)
        self.layers.append(layer)
        shape = KINDS[kind][1]
        if shape:
            layer["out"] = layer["name"]
            self.shapes[layer["name"]] = shape
        edges = layer["type"] in ("conv", "edge_sum")
        if edges or any(name in self.moving for _, name in operands(layer)):
            self.moving.add(layer["name"])
        return str(layer["name"])

    def add(self, kind: str) -> str:
        """Append a layer whose operands are drawn; return its value."""
        reads = KINDS[kind][0]
        if not kind.startswith("conv"):
            names = [self.value(shape) for shape in reads]
            if kind.startswith("sum"):  # terms that nothing else reads, or that others may read
                alone = [
                    self.add(f"linear_{self.draw(st.sampled_from('SV'))}{reads}")
                    for _ in range(self.draw(st.integers(0, 2)))
                ]
                return self.put(kind, x=alone + (names if self.flip() or not alone else []))
            keys = ("x", "density" if kind.startswith("normalize") else "y")
            return self.put(kind, **dict(zip(keys, names, strict=False)))
        radial = {}
        if self.flip():
            radial["sender"] = self.sent(self.value("S"))
        if self.flip():
            radial["receiver"] = self.value("S")
        if self.draw(st.integers(0, 3)):
            return self.put(kind, radial, x=self.sent(self.value(reads)))
        return self.put(kind, radial, x_table=f"types_{reads}.table")

    def finish(self) -> Package:
        """Return the package. Values that no layer reads become energies or descriptors."""
        p = Program(2)
        if not self.exchanged:
            self.put("conv_SS", x=self.sent(self.add("edge_sum_S")))
        read = {name for layer in self.layers for _, name in operands(layer)}
        ends = [name for name in self.shapes if name not in read]
        ends.sort(key=lambda name: name not in self.moving)  # one energy at least has forces
        for name in ends:
            if name != ends[0] and self.draw(st.integers(0, 4)) == 0:
                p.descriptors.append(name)
                continue
            x = self.put("contraction_S", x=name) if self.shapes[name] == "V" else name
            self.put(f"energy_{self.shapes[x]}", x=x)
        p.layers, p.tensors = self.layers, templates()[1]
        p.values = {name: SHAPES[shape] for name, shape in self.shapes.items()}
        return p.package()


@st.composite
def packages(draw: Any) -> Package:
    """Draw a program of about ten layers that exchanges at least one value."""
    drawn = Drawn(draw)
    for kind in draw(st.lists(st.sampled_from(CHOICES), min_size=2, max_size=8)):
        drawn.add(kind)
    return drawn.finish()


def readers(package: Package) -> dict[str, list[str]]:
    """Return the readers of each value that is exchanged."""
    exchanged = [layer["x"] for layer in package.layers if layer["type"] == "exchange"]
    read = [pair for layer in package.layers for pair in operands(layer)]
    return {name: [kind for kind, other in read if other == name] for name in exchanged}
