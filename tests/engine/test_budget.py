"""Small files that would need much memory are refused before it is allocated."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.cli.main import main
from mdcg.package.kernel_file import device_refusal

from ..processes import printed_by
from .problems import build
from .small_package import SmallPackage
from .symmetry import DATA
from .test_conv_layer import Model
from .test_threads import tables

OPEN = """
import re, sys
from pathlib import Path
from mdcg import _core
def peak():  # in bytes, of this program, without what started it
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", status)[1])
before = peak()
try:
    model = _core.Model(sys.argv[1], kernels="generic", threads=1)
    model.evaluate([[0.0, 0.0, 0.0]], [0])
except _core.EngineError as error:
    print(error)
print(peak() - before)
"""


def package(*layers: dict[str, object], types: int = 1, **values: str) -> SmallPackage:
    p = SmallPackage([f"t{number}" for number in range(types)], 3.0, "float32")
    for name, irreps in values.items():
        p.value(name, irreps)
    for layer in layers:
        p.layer(str(layer.pop("type")), **layer)
    return p


def linears(channels: int, count: int, types: int = 1) -> SmallPackage:
    """Many layers with one shared matrix, or with one shared matrix per type."""
    values = {f"v{number}": f"{channels}x0e" for number in range(count + 1)}
    p = package(types=types, **values)
    table = p.tensor(np.zeros((types, channels)), "float32")
    shape = (types, channels, channels) if types > 1 else (channels, channels)
    matrix = p.tensor(np.zeros(shape), "float32")
    p.layer("type_rows", out="v0", table=table)
    for number in range(count):
        paths = [{"in": 0, "out": 0, "weight": matrix}]
        p.layer("linear", x=f"v{number}", out=f"v{number + 1}", paths=paths, bias=[])
    return p


def paths(blocks: int, types: int) -> SmallPackage:
    """A layer whose paths between all blocks share one tensor of small matrices by type."""
    irreps = "+".join(["1x0e"] * blocks)
    p = package(types=types, a=irreps, b=irreps)
    matrix = p.tensor(np.zeros((types, 1, 1)), "float32")
    p.layer("type_rows", out="a", table=p.tensor(np.zeros((types, blocks)), "float32"))
    every = [(i, j) for i in range(blocks) for j in range(blocks)]
    entries = [{"in": i, "out": j, "weight": matrix} for i, j in every]
    p.layer("linear", x="a", out="b", paths=entries, bias=[])
    return p


def rows() -> SmallPackage:
    """A value of very many blocks, which many layers read."""
    irreps = "+".join(["1x0e"] * 200_000)
    p = package(a=irreps)
    p.layer("type_rows", out="a", table=p.tensor(np.zeros((1, 200_000)), "float32"))
    one = p.tensor(np.ones(1))
    for _ in range(9_000):
        p.layer("energy", x="a", channel=0, scale=one, shift=one)
    return p


def wide(descriptors: list[str]) -> SmallPackage:
    """A value whose rows are long, in irreps of a few letters."""
    p = package(a="+".join(["60000x16e"] * 8))
    p.layer("linear", x="a", out="a", paths=[], bias=[])
    p.manifest["descriptors"] = descriptors
    return p


def hidden() -> SmallPackage:
    """A table whose ends need a square matrix of the hidden units."""
    p = tables(16)
    radial = p.manifest["layers"][1]["radial"]
    radial["layers"][0]["weight"] = p.tensor(np.zeros((4, 30_000)))
    radial["layers"][1]["weight"] = p.tensor(np.zeros((30_000, 1)))
    return p


CASES: dict[str, Callable[[], SmallPackage]] = {
    "matrix in many layers": lambda: linears(900, 2000),
    "matrices by type in many layers": lambda: linears(16, 2000, 1000),
    "matrices by type in many paths": lambda: paths(100, 1000),
    "blocks in many layers": rows,
    "long rows": lambda: wide([]),
    "long descriptors": lambda: wide(["a"]),
    "table of a wide network": hidden,
}


@pytest.mark.parametrize("name", CASES)
def test_a_small_file_asks_for_much(name: str, tmp_path: Path) -> None:
    path = Path(CASES[name]().write(tmp_path / "p.mdcg"))
    size = path.stat().st_size
    assert size < 4e6
    *said, peak = printed_by(OPEN, path).splitlines()
    assert len(said) == 1, said
    assert " asks for up to " in said[0]
    assert re.search(r"the memory budget of a file of \d+\.\d [kM]B is [567]\d\d\.\d MB: ", said[0])
    assert int(peak) < 60e6 + 40 * size


def all_paths(l_max: int, repeat: int = 1, more: int = 0) -> Model:
    """A convolution of all paths up to a degree, each so many times, in a file of some kB."""
    degrees = range(l_max + 1)
    x = "+".join(f"1x{l}e" for l in range(l_max + more + 1))
    out = "+".join([x] * repeat)
    model = Model("float32")
    harmonics = "+".join(f"1x{l}e" for l in degrees)
    rows = model.linear(model.conv(None, "1x0e", 0, "1x0e"), x)
    model.energy(model.conv(rows, x, l_max, out, problem=build(x, harmonics, out, "float32")))
    return model


def test_kernels_that_would_occupy_a_compiler(tmp_path: Path, capsys: Any) -> None:
    """Layers whose generated text would take long to compile run on generic kernels."""
    path = all_paths(9).write(tmp_path)
    assert Path(path).stat().st_size < 80_000
    start = time.monotonic()
    model = _core.Model(path, threads=1)
    model.evaluate([[0.0, 0.0, 0.0], [0.0, 0.3, 1.1]], [0, 1])
    why = "kernels are generated for up to 4 million characters of source text per layer (16 "
    why += "million per package); those of a layer of this package would have about"
    kernels = json.loads(model.report())["kernels"]
    assert {kernel["origin"] for kernel in kernels} == {"generic"}
    assert all(kernel["why"].startswith(why) for kernel in kernels)
    assert f"generic, because {why}" in model.summary()
    with pytest.raises(_core.EngineError, match=re.escape(why)) as error:
        _core.Model(path, kernels="generated", threads=1).prepare()
    assert error.value.kind == 4
    assert device_refusal(Path(path)).startswith(why)
    assert main(["kernels", path, "--target", "native"]) == 4
    said = capsys.readouterr().err
    assert re.fullmatch(
        rf"mdcg: {re.escape(path)}: {re.escape(why)} [0-9.]+ million, so it runs on .*\n", said
    )
    assert time.monotonic() - start < 60


def test_more_terms_than_any_kernel_takes(tmp_path: Path) -> None:
    path = all_paths(12, 5, 4).package.write(tmp_path / "p.mdcg")
    with pytest.raises(_core.EngineError, match="more than 1000000 entries of 3j symbols"):
        _core.Model(path, kernels="generic")


@pytest.mark.parametrize("path", sorted(DATA.glob("*.mdcg")), ids=lambda path: path.stem)
def test_models_stay_far_below(path: Path) -> None:
    report = json.loads(_core.Model(str(path), kernels="generic").report())
    assert 0 < report["budget_bytes"] < 0.1 * report["budget_limit_bytes"]
    assert 0 < report["kernel_text"] < 0.1 * report["kernel_text_limit"]


def test_tables_of_many_pairs_of_types(tmp_path: Path) -> None:
    """Tables for many pairs of types are refused, and the model still works for few."""
    p = tables(4096)
    names = [f"t{number}" for number in range(40)]
    p.manifest["type_names"] = names
    radial = p.manifest["layers"][1]["radial"]
    for field in ("sender", "receiver"):
        radial[field] = p.tensor(np.random.default_rng(1).normal(size=(40, 8)))
    p.manifest["layers"][0]["table"] = p.tensor(np.ones((40, 4096)))
    model = _core.Model(p.write(tmp_path / "p.mdcg"), kernels="generic", threads=1)
    positions = np.stack(np.meshgrid(range(4), range(5), range(2)), axis=-1).reshape(-1, 3) * 1.0
    few = model.evaluate(positions[:2], [0, 1])["energy"]
    with pytest.raises(_core.EngineError, match=r"pairs of types, whose .* budget .* --exact"):
        model.evaluate(positions, np.arange(40))
    assert model.evaluate(positions[:2], [0, 1])["energy"] == few
