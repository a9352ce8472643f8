"""The engine and the generator of kernels interpret a package in the same way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.package import Package
from mdcg.package.cuda_kernels import cuda_passes, host_source
from mdcg.problem import ConvProblem, Polynomial, SymmetricContractionProblem

from ..signing import signed
from .programs import graph, open_model, run
from .test_conv_layer import Model, compare, system
from .test_damaged_files import DATA, joined, refused, split
from .test_program import two_layers

pytestmark = pytest.mark.compiler

Json = dict[str, Any]
Change = Callable[[Json], Any]

PATH = [0, 0, 0, "uvu", 1, "0x1.0000000000000p+0"]


def layer_of(manifest: Json, kind: str) -> Json:
    found: Json = next(layer for layer in manifest["layers"] if layer["type"] == kind)
    return found


def text(value: Any) -> str:
    """Return JSON in the canonical form of problems."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def edited(kind: str, change: Change) -> Change:
    """Return a change of a manifest that changes the problem of a layer."""

    def apply(manifest: Json) -> None:
        layer = layer_of(manifest, kind)
        problem = json.loads(layer["problem"])
        layer["problem"] = text(problem if (new := change(problem)) is None else new)

    return apply


def of_text(kind: str, change: Callable[[str], Any]) -> Change:
    return lambda m: layer_of(m, kind).update(problem=change(layer_of(m, kind)["problem"]))


def weight(value: Any) -> Change:
    return edited("conv", lambda p: p["paths"][0].__setitem__(5, value))


def path(*fields: Any) -> Change:
    return edited("conv", lambda p: p["paths"].__setitem__(0, list(fields)))


def term(*fields: Any) -> Change:
    """Replace the first product of a contraction."""
    return edited("contraction", lambda p: p["polynomials"][0][1][0].__setitem__(0, list(fields)))


def without(kind: str, key: str) -> Change:
    return edited(kind, lambda p: {k: v for k, v in p.items() if k != key})


CONV: list[Change] = [
    of_text("conv", json.loads),  # an object in place of text
    of_text("conv", lambda t: " " + t),
    of_text("conv", lambda t: t.replace(",", ", ")),
    of_text("conv", lambda t: t.replace('"format":1', '"format":1.0')),
    of_text("conv", lambda t: t[:-1] + ',"shared_weights":false}'),
    of_text("conv", lambda t: t.replace("uvu", "\\u0075vu")),
    of_text("conv", lambda t: json.dumps(json.loads(t), separators=(",", ":"))[:-1] + ',"a":1}'),
    *(without("conv", key) for key in ("format", "layout", "flipped", "rounded", "dtype", "paths")),
    without("conv", "shared_weights"),
    edited("conv", lambda p: p.update(format=2)),
    edited("conv", lambda p: p.update(layout="mul_ir")),
    edited("conv", lambda p: p.update(layout="")),
    edited("conv", lambda p: p.update(shared_weights=True)),
    edited("conv", lambda p: p.update(shared_weights=0)),
    edited("conv", lambda p: p.update(dtype="float32")),
    edited("conv", lambda p: p.update(kind="other")),
    edited("conv", lambda p: p.update(flipped=None)),
    edited("conv", lambda p: p.update(flipped="111")),
    edited("conv", lambda p: p.update(flipped=[[1, 1]])),
    edited("conv", lambda p: p.update(flipped=[[1, 1, -1]])),
    edited("conv", lambda p: p.update(flipped=[[1, 1, 1.0]])),
    edited("conv", lambda p: p.update(flipped=[[1, 1, 1], [0, 1, 1]])),  # not sorted
    edited("conv", lambda p: p.update(rounded=[[0, 1, 1], [0, 1, 1]])),
    edited("conv", lambda p: p.update(rounded=[["0", 1, 1]])),
    edited("conv", lambda p: p.update(rounded={"0": [0, 1, 1]})),
    edited("conv", lambda p: p.update(irreps_in1=p["irreps_in1"].replace("x0e", " x0e"))),
    edited("conv", lambda p: p.update(irreps_in1=f" {p['irreps_in1']}")),
    edited("conv", lambda p: p.update(irreps_in2="0e+1o+2e")),
    edited("conv", lambda p: p.update(irreps_in2="1x1o+1x0e+1x2e")),
    edited("conv", lambda p: p.update(irreps_in2="1x0e+1x1o+1x1o")),
    edited("conv", lambda p: p.update(irreps_in2="1x0e+1x2e+1x1o")),
    edited("conv", lambda p: p.update(irreps_out="0" + p["irreps_out"])),
    *map(weight, (1.0, 1, "1", "1.0", "0x1p+0", "0x1.8P+0", "0X1.8000000000000p+0", "inf", "nan")),
    *map(weight, ("-inf", "0x-1.0000000000000p+0", "0x1.0000000000000p+9999", None, True)),
    path(*PATH[:5]),
    path(*PATH, 1),
    path(0.0, *PATH[1:]),
    path(False, *PATH[1:]),
    path(-1, *PATH[1:]),
    path("0", *PATH[1:]),
    path(0, 0, 1, *PATH[3:]),
    path(*PATH[:3], "uvw", *PATH[4:]),
    path(*PATH[:4], 0, PATH[5]),
    path(*PATH[:4], True, PATH[5]),
    path(*PATH[:4], 1.0, PATH[5]),
    edited("conv", lambda p: p.update(paths=[])),
    lambda m: layer_of(m, "conv").update(radial=json.dumps(layer_of(m, "conv")["radial"])),
]

ONE = "0x1.0000000000000p+0"
CONTRACTION: list[Change] = [
    of_text("contraction", json.loads),
    of_text("contraction", lambda t: t + " "),
    *(without("contraction", key) for key in ("format", "kind", "dtype", "irreps_in")),
    edited("contraction", lambda p: p.update(format=2)),
    edited("contraction", lambda p: p.update(kind="contraction")),
    edited("contraction", lambda p: p.update(other=1)),
    edited("contraction", lambda p: p.update(irreps_out=p["irreps_out"] + " ")),
    edited("contraction", lambda p: p.update(polynomials={})),
    edited("contraction", lambda p: p["polynomials"][0].append(1)),
    edited("contraction", lambda p: p["polynomials"][0].__setitem__(0, 99)),
    edited("contraction", lambda p: p["polynomials"][0].__setitem__(0, 0.0)),
    edited("contraction", lambda p: p["polynomials"][0][1].append([])),
    edited("contraction", lambda p: p["polynomials"][0][1][0].append([ONE, 0, 0, 0, 0, 0])),
    edited("contraction", lambda p: p["polynomials"][0][1][0].append(p["polynomials"][0][1][0][0])),
    term(),
    term(ONE),
    term(1.0, 0),
    term("1.0", 0),
    term("0x1p+0", 0),
    term("0x0.0p+0", 0),
    term("inf", 0),
    term(ONE, 0.0),
    term(ONE, -1),
    term(ONE, 99),
    term(ONE, 1, 0),
    term(ONE, [0]),
]


@pytest.mark.parametrize("number", range(len(CONV) + len(CONTRACTION)))
def test_texts_that_mdcg_does_not_write_are_refused(number: int, tmp_path: Path) -> None:
    """The engine refuses texts that the generator rejects or could interpret differently."""
    package, path = Package.open(DATA / "mace_water_float64.mdcg"), tmp_path / "p.mdcg"
    before = json.dumps(package.manifest)
    [*CONV, *CONTRACTION][number](package.manifest)
    assert json.dumps(package.manifest) != before
    package.save(path)
    refused(path, r"layer \d+ \((conv|contraction)\)")


@pytest.mark.parametrize("field", ["x_table", "transform", "table", "sender", "normalization"])
def test_null_is_absent(field: str, tmp_path: Path) -> None:
    """The generator treats a null field like an absent one."""
    package = Package.open(DATA / "mace_water_float64.mdcg")
    problems = []
    for value in ({}, {field: None}):
        for layer in package.layers:
            if layer["type"] == "conv" and (field != "x_table" or "x" in layer):
                target = layer if field in ("x_table", "normalization") else layer["radial"]
                target.pop(field, None)
                target.update(value)
        package.save(tmp_path / "p.mdcg")
        problems.append(_core.kernel_problem(str(tmp_path / "p.mdcg")))
    assert problems[0] == problems[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_symbols_have_one_source(dtype: str, tmp_path: Path) -> None:
    """Neither generic nor generated kernels read 3j symbols from tensors of the file."""
    source, path = DATA / f"nequip_water_{dtype}.mdcg", tmp_path / "p.mdcg"
    header, tensors = split(source.read_bytes())
    changed = bytearray(tensors)
    for name, entry in header.items():
        if name.endswith((".values", ".nonzeros")):
            begin, end = entry["data_offsets"]
            changed[begin:end] = bytes(end - begin)
    assert changed != tensors
    path.write_bytes(signed(joined(header, bytes(changed))))
    positions = np.random.default_rng(1).uniform(0.0, 4.0, (12, 3))
    types = np.arange(12, dtype=np.int32) % 2
    for kernels in ("generic", "generated"):
        found, want = (
            _core.Model(str(file), kernels=kernels).evaluate(positions, types)
            for file in (path, source)
        )
        assert want["energy"] == found["energy"]
        assert np.array_equal(want["forces"], found["forces"])


def test_signs_roundings_and_weights_of_paths(tmp_path: Path) -> None:
    """Both kinds of kernels use all that a problem states about a symbol."""
    irreps = ("4x1o", "1x0e+1x1o+1x2e", "4x1e+4x1o+4x2e")
    paths = [(0, 1, 0, "uvu", True, -1.7), (0, 1, 0, "uvu", True, 0.0), (0, 2, 1), (0, 1, 2)]
    other: Json = {"flipped": ((1, 2, 1),), "rounded": ((1, 1, 1), (1, 1, 2), (1, 2, 1))}
    energies = []
    s = system(12, 80)
    for how in ({}, other):
        problem = ConvProblem.build(*irreps, paths, layout="ir_mul", dtype="float64", **how)
        model = Model()
        x = model.linear(model.conv(None, "4x0e", 1, "4x0e+4x1o"), irreps[0])
        x = model.conv(x, irreps[0], 2, irreps[2], problem=problem)
        model.energy(model.conv(x, irreps[2], 2, "4x0e"))
        path = model.package.write(tmp_path / "p.mdcg")
        compare(path, s, 1e-12, 1e-11)
        found = _core.Model(path, kernels="generic").evaluate(s.positions, s.types, edges=s.edges)
        energies.append(found["energy"])
    assert abs(energies[0] - energies[1]) > 1e-3


def test_polynomials_of_very_different_sizes(tmp_path: Path) -> None:
    """Small polynomials are not lost beside large ones in generated kernels."""
    small = 2.0**-60
    package = two_layers().package()
    layer = layer_of(package.manifest, "contraction")
    problem = SymmetricContractionProblem.from_json(layer["problem"])
    polynomials = [
        Polynomial(
            p.i_out,
            tuple(
                tuple((v * small if n % 2 else v, ix) for v, ix in terms) for terms in p.components
            ),
        )
        for n, p in enumerate(problem.polynomials)
    ]
    layer["problem"] = SymmetricContractionProblem(
        problem.irreps_in, problem.irreps_out, tuple(polynomials), problem.dtype
    ).to_json()
    want = run(open_model(two_layers().package(), tmp_path / "a.mdcg", kernels="generic"), graph())
    name = layer["coefficients"]
    package.tensors[name] = package.tensors[name].copy()
    package.tensors[name][:, 1::2] /= small
    for kernels in ("generic", "generated"):
        found = run(open_model(package, tmp_path / "b.mdcg", kernels=kernels), graph())
        assert abs(found["energy"] - want["energy"]) < 1e-11 * abs(want["energy"]), kernels


def test_every_package_that_opens_has_kernels(tmp_path: Path) -> None:
    """The generator accepts the layers of every package that the engine accepts."""
    for source in sorted(DATA.glob("*.mdcg")):
        content = json.loads(_core.kernel_problem(str(source)))
        with_kernels = [layer for layer in content["layers"] if host_source(layer)]
        found = {each["layer"] for each in cuda_passes(content["layers"], content["tensors"])[0]}
        assert len(found) == len(with_kernels) > 0
