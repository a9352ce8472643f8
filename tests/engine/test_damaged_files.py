"""Damaged, altered or invented packages: both readers refuse them with one sentence."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.package import Package
from mdcg.problem import ConvProblem

from ..processes import printed_by
from ..signing import joined, signed, split
from .programs import refused
from .small_package import SmallPackage
from .test_program import two_layers
from .test_threads import rows, tables

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
MACE = DATA / "mace_water_float32.mdcg"


def isolated(code: str, *arguments: object) -> str:
    """Run code in a process of its own with 6 GB; return what it prints."""
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))\n"
    return printed_by(limit + code, *arguments)


# ---- the digest ----


def test_every_byte_counts(tmp_path: Path) -> None:
    data, path = MACE.read_bytes(), tmp_path / "p.mdcg"
    rng = np.random.default_rng(8)
    start = 8 + int.from_bytes(data[:8], "little")
    places = [*rng.integers(0, start, 60), *rng.integers(start, len(data), 60), len(data) - 1]
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        refused(path)
        if place >= start:
            refused(path, "altered or damaged after it was written")


def test_an_altered_manifest(tmp_path: Path) -> None:
    path = tmp_path / "p.mdcg"
    header, tensors = split(MACE.read_bytes())
    manifest = json.loads(header["__metadata__"]["mdcg"])
    manifest["type_names"].reverse()
    header["__metadata__"]["mdcg"] = json.dumps(manifest)
    path.write_bytes(joined(header, tensors))
    refused(path, "altered or damaged after it was written .its SHA-256 differs.: copy it again")
    path.write_bytes(signed(path.read_bytes()))
    assert Package.open(path).type_names == _core.Model(str(path)).type_names
    del header["__metadata__"]["sha256"]
    path.write_bytes(joined(header, tensors))
    refused(path, "has no SHA-256 of what it holds")


def test_the_digest_is_that_of_any_tool() -> None:
    import hashlib

    header, tensors = split((DATA / "mace_water_float64.mdcg").read_bytes())  # format 1
    digest = hashlib.sha256(header["__metadata__"]["mdcg"].encode() + tensors).hexdigest()
    assert header["__metadata__"]["sha256"] == digest
    assert signed(MACE.read_bytes()) == MACE.read_bytes()
    data = Package.open(MACE).to_bytes()
    assert signed(data) == data
    assert len(data) < len(MACE.read_bytes())  # older formats had more


@pytest.mark.parametrize("plain", [False, True])
def test_sha256(plain: bool) -> None:
    import hashlib

    rng = np.random.default_rng(9)
    for length in [*range(200), 1000, 4096, 100_001]:
        data = rng.bytes(length)
        assert _core.sha256(data, plain=plain) == hashlib.sha256(data).hexdigest(), length


# ---- limits ----


@pytest.mark.parametrize("many", [False, True])
def test_cutoffs_of_layers_are_within_the_package(tmp_path: Path, many: bool) -> None:
    p, path = tables(5), tmp_path / "p.mdcg"
    radial = p.manifest["layers"][1]["radial"]
    radial["r_max"] = p.tensor(np.array([[3.0, 2.0], [2.0, 3.1]])) if many else 3.1
    p.write(path)
    with pytest.raises(_core.EngineError, match=r"r_max is 3\.1.* up to the package's r_max of 3"):
        _core.Model(str(path))


def _layers(m: dict[str, Any]) -> None:
    m["layers"] = m["layers"] * (10_000 // len(m["layers"]) + 1)


def _of(kind: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda m: change(next(layer for layer in m["layers"] if layer["type"] == kind))


def _xplor(start: float) -> Callable[[dict[str, Any]], Any]:
    cutoff = {"kind": "xplor", "start": start}
    return _of("conv", lambda layer: layer["radial"].update(cutoff=cutoff))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(type_names=[f"A{i}" for i in range(1001)]), "type_names"),
        (lambda m: m.update(type_names=["H", "H"]), "type_names"),
        (lambda m: m.update(atomic_numbers=[1, 200]), "atomic_numbers"),
        (lambda m: m.update(atomic_numbers=[1, 8.5]), "atomic_numbers"),
        (lambda m: m.update(r_max=1000.5), "r_max"),
        (lambda m: m.update(r_max=0.5), "r_max"),  # the layers' is larger
        (_layers, "layers"),
        (lambda m: m["values"].update(dict.fromkeys(map(str, range(10_001)), "1x0e")), "values"),
        (lambda m: m["values"].update(more="65537x0e"), "irreps"),
        (lambda m: m["values"].update(more="1x17e"), "irreps"),
        (lambda m: m["values"].update(more="+".join(["65536x8e"] * 16)), "irreps"),
        (lambda m: m.update(descriptors=m["descriptors"] * 2), "descriptor"),
        (_of("conv", lambda x: x["radial"]["cutoff"].update(p=1.5)), "p is 1.5"),
        (_of("conv", lambda x: x["radial"]["cutoff"].update(p=201)), "p is 201"),
        (_of("conv", lambda x: x["radial"]["cutoff"].update(kind="cos")), "polynomial or xplor"),
        (_xplor(0.1), "start is 0.1, expected .* or more and less than the r_max"),
        (_xplor(50.0), "start is 50, expected .* or more and less than the r_max"),
        (_of("conv", lambda x: x.update(harmonics="round")), "'round', expected unit or solid"),
        (_of("conv", lambda x: x["radial"].update(table=3)), "table"),
        (_of("conv", lambda x: x["radial"].update(layers=x["radial"]["layers"] * 9)), "layers"),
        (
            _of(
                "conv",
                lambda x: x["radial"].update(
                    basis={"kind": "chebyshev", "order": 5000, "argument": "length"}
                ),
            ),
            "order",
        ),
        (lambda m: m["options"].update(graph_fields={"charge": 1}), "pairs of different names"),
        (lambda m: m["options"].update(graph_fields=[["charge", 0.5]]), "pairs of different names"),
        (lambda m: m["options"].update(graph_fields=[["q", 1]] * 2), "pairs of different names"),
    ],
)
def test_limits(tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    package, path = Package.open(MACE), tmp_path / "p.mdcg"
    change(package.manifest)
    package.save(path)
    refused(path, message)


def test_paths_beyond_the_radial_network(tmp_path: Path) -> None:
    """Paths without enough weights are refused without allocating for them."""
    p = SmallPackage(["H"], 3.0)
    channels = 65536
    p.value("x", f"{channels}x0e")
    p.layer("type_rows", out="x", table=p.tensor(np.zeros((1, channels))))
    p.value("o", f"{channels}x0e")
    layer = {
        "x": "x",
        "out": "o",
        "radial": {
            "r_max": 3.0,
            "basis": {"kind": "chebyshev", "order": 1},
            "layers": [{"weight": p.tensor(np.zeros((1, 8)))}],
        },
    }
    irreps = {"irreps_in1": f"{channels}x0e", "irreps_in2": "1x0e", "irreps_out": f"{channels}x0e"}
    p.layer("conv", **layer)
    code = (
        "import sys\nfrom mdcg import _core\n"
        "try:\n    _core.Model(sys.argv[1])\nexcept _core.EngineError as e:\n    print(e)"
    )
    for count, message in ((100_000, "1 to 10000 paths"), (9000, "more than 8 weights")):
        paths = [[0, 0, 0, "uvu", 1, (1.0).hex()]] * count
        problem = {**irreps, "paths": paths, "dtype": "float64", "flipped": [], "rounded": []}
        p.manifest["layers"][1]["problem"] = json.dumps(problem)
        path = p.write(tmp_path / "p.mdcg")
        assert message in isolated(code, path)


# ---- nesting ----


@pytest.mark.parametrize("place", ["header", "shape", "manifest", "r_max", "paths", "problem"])
def test_nesting(tmp_path: Path, place: str) -> None:
    """Deeply nested JSON is refused without exhausting the stack."""
    header, tensors = split(MACE.read_bytes())
    manifest = json.loads(header["__metadata__"]["mdcg"])
    conv = next(layer for layer in manifest["layers"] if layer["type"] == "conv")
    files = []
    for depth in (1, 70, 2000, 200_000):
        deep = "[" * depth + "]" * depth
        mark = "NESTED"
        new, inner = json.loads(json.dumps(header)), json.loads(json.dumps(manifest))
        if place == "manifest":
            inner["options"] = mark
        elif place == "r_max":
            inner["r_max"] = mark
        elif place in ("paths", "problem"):
            target = next(layer for layer in inner["layers"] if layer["type"] == "conv")
            problem = json.loads(conv["problem"])
            problem["paths"] = mark
            target["problem"] = problem if place == "paths" else json.dumps(problem)
        elif place == "header":
            new["__metadata__"]["other"] = mark
        else:
            next(iter(v for k, v in new.items() if k != "__metadata__"))["shape"] = mark
        text = json.dumps(inner).replace(f'"{mark}"', deep).replace(f'\\"{mark}\\"', deep)
        new["__metadata__"]["mdcg"] = text
        raw = json.dumps(new).replace(f'"{mark}"', deep).encode()
        path = tmp_path / f"{depth}.mdcg"
        path.write_bytes(signed(len(raw).to_bytes(8, "little") + raw + tensors))
        files.append(path)
    code = """
import sys
from pathlib import Path
from mdcg import _core
from mdcg.errors import PackageError
from mdcg.package import Package
for path in sys.argv[1:]:
    for reader in (_core.Model, lambda name: Package.open(Path(name))):
        try:
            reader(path)
        except (_core.EngineError, PackageError) as error:
            assert "\\n" not in str(error) and len(str(error)) < 600
            print("refused")
        else:
            print("read", path)
"""
    found = isolated(code, *files).splitlines()
    assert found[2:] == ["refused"] * 6, found


@pytest.mark.parametrize("strange", [r'"\ud800"', "NaN", "-Infinity", "[1, 2", "'x'"])
@pytest.mark.parametrize("inner", [False, True])
def test_what_is_no_json(tmp_path: Path, strange: str, inner: bool) -> None:
    header, tensors = split(MACE.read_bytes())
    if inner:
        manifest = json.loads(header["__metadata__"]["mdcg"])
        manifest["options"] = "STRANGE"
        text = json.dumps(manifest).replace('"STRANGE"', strange)
        header["__metadata__"]["mdcg"] = text
        path = tmp_path / "p.mdcg"
        path.write_bytes(signed(joined(header, tensors)))
    else:
        header["__metadata__"]["other"] = "STRANGE"
        raw = json.dumps(header).replace('"STRANGE"', strange).encode()
        path = tmp_path / "p.mdcg"
        path.write_bytes(len(raw).to_bytes(8, "little") + raw + tensors)
    refused(path, "damaged")


# ---- anything ----

FUZZ = """
import copy, json, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[2])
from signing import signed, split
from mdcg import _core
from mdcg.errors import PackageError
from mdcg.package import Package

source, folder, count = Path(sys.argv[1]), Path(sys.argv[3]), int(sys.argv[4])
header, tensors = split(source.read_bytes())
original = json.loads(header["__metadata__"]["mdcg"])
rng = np.random.default_rng(int(sys.argv[5]))
STRANGE = [
    None, True, 0, -1, 1, 2, 3, 7, 255, 65535, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1,
    2**63, 2**64, 10**30, 0.5, -0.5, 1e-300, 1e300, "", "0", "x", "1x0e", "99999x9o", "{}", "[]",
    "\\ud7ff\\0", [], {}, [[]], [0], [-1, -1], [[0, 0, 0, "uvu", 1, 1.0]], {"kind": "x"},
    "a" * 5000,
]

def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from places(inner, (*path, number))

def mutate(tree):
    every = [path for path in places(tree) if path]
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        path = every[rng.integers(len(every))]
        target = tree
        try:
            for step in path[:-1]:
                target = target[step]
            last = path[-1]
            target[last]
        except (KeyError, IndexError, TypeError):
            continue  # gone by the mutation before
        kind = rng.integers(6)
        if kind == 0:
            del target[last]
        elif kind == 1:  # another part of the same tree
            other, node = every[rng.integers(len(every))], tree
            try:
                for step in other:
                    node = node[step]
            except (KeyError, IndexError, TypeError):
                continue
            target[last] = copy.deepcopy(node)
        elif kind == 2 and isinstance(target, list):
            target.insert(last, copy.deepcopy(target[rng.integers(len(target))]))
        elif kind == 3 and isinstance(target[last], (int, float)):
            target[last] = target[last] * int(rng.integers(-3, 4)) + int(rng.integers(-2, 3))
        else:
            target[last] = copy.deepcopy(STRANGE[rng.integers(len(STRANGE))])

path = folder / "p.mdcg"
positions = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.1], [0.0, 1.2, 0.0], [1.3, 0.0, 0.2]])
opened = evaluated = python = 0
for number in range(count):
    manifest, new = copy.deepcopy(original), copy.deepcopy(header)
    bytes_of_tensors = bytearray(tensors)
    if number % 4 == 0:
        names = {name: entry for name, entry in new.items() if name != "__metadata__"}
        mutate(names)
        new = {"__metadata__": new["__metadata__"], **names}
    elif number % 4 == 1:
        for at in rng.integers(len(tensors), size=3):
            bytes_of_tensors[at] ^= 1 << int(rng.integers(8))
    else:
        mutate(manifest)
    new["__metadata__"]["mdcg"] = json.dumps(manifest)
    raw = json.dumps(new).encode()
    path.write_bytes(signed(len(raw).to_bytes(8, "little") + raw + bytes_of_tensors))
    try:
        Package.open(path)
        python += 1
    except PackageError as error:
        assert "\\n" not in str(error), str(error)
    try:
        model = _core.Model(str(path), kernels="generic", threads=1)
    except (_core.EngineError, ValueError) as error:
        assert "\\n" not in str(error) and str(path) in str(error), str(error)
        assert "altered" not in str(error), "this test must get further"
        continue
    opened += 1
    try:
        model.evaluate(positions, [0, 1, 1, 0])
        evaluated += 1
    except _core.EngineError as error:
        assert "\\n" not in str(error), str(error)
print(count, "files:", opened, "opened,", evaluated, "evaluated;", python, "read in Python")
assert 0 < evaluated <= opened < count / 2
"""


@pytest.mark.parametrize("name", ["mace", "nequip", "program", "rows"])
def test_mutated_packages(tmp_path: Path, name: str) -> None:
    """Randomly changed packages cause no crash, endless loop or unbounded memory."""
    source = tmp_path / "source.mdcg"
    if name in ("mace", "nequip"):
        source = DATA / f"{name}_water_float32.mdcg"
    elif name == "rows":
        rows(40).write(source)
    else:
        two_layers().package().save(source)
    print(isolated(FUZZ, source, ROOT / "tests", tmp_path, 300, 11))


SPARSE = """
import re, sys, time
from pathlib import Path
from mdcg import _core
from mdcg.errors import PackageError
from mdcg.package import Package
*files, package = sys.argv[1:]
start = time.monotonic()
for path in files:
    for reader in (_core.Model, Package.open, lambda f: _core.Model(package, kernels=f)):
        try:
            reader(path)
        except (_core.EngineError, PackageError) as error:
            assert "\\n" not in str(error)
            print(error)
assert time.monotonic() - start < 20
status = Path("/proc/self/status").read_text()
peak = int(re.search(r"VmHWM:\\s*(\\d+)", status)[1])  # in kB, without what started the program
assert peak < 500_000
"""


def test_files_that_only_claim_to_be_large(tmp_path: Path) -> None:
    """Huge sparse files are refused by their first bytes, before they are read."""
    data = MACE.read_bytes()
    metadata = split(data)[0]["__metadata__"]
    zeros = {"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 1 << 40]}
    begins = {
        "zeros": b"",
        "longer": data,
        "large": joined({"__metadata__": metadata, "zeros": zeros}, b""),
        "checkpoint": b"PK\3\4",
        "pickle": b"\x80\2\x8a",
        "header": (100_000_000).to_bytes(8, "little") + b"{",
    }
    files = []
    for kind, begin in begins.items():
        files.append(tmp_path / f"{kind}.mdcg-kernels")
        files[-1].write_bytes(begin)
        os.truncate(files[-1], (1 << 40) + len(begin))
    said = isolated(SPARSE, *files, MACE).splitlines()
    assert len(said) == 3 * len(files)
    parts = [
        r"begins with other bytes than a \.mdcg",
        r"has 1099\.\d GB, expected at most 4\.3 GB",
        r"has 1099\.\d GB, expected at most 4\.3 GB",
        r"is a zip archive, as checkpoints are, expected a \.mdcg",
        r"is a pickle, as checkpoints are, expected a \.mdcg",
        r"has 1099\.\d GB, expected at most 4\.3 GB",
    ]
    for number, sentence in enumerate(said):
        assert re.search(parts[number // 3], sentence), sentence
        assert len(sentence) < 300


def test_other_kinds_of_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "water.mdcg"
    path.write_bytes((ROOT / "examples" / "data" / "water.model").read_bytes())
    refused(path, r"is a zip archive, as checkpoints are, expected a \.mdcg package: convert the")
    length = int.from_bytes(MACE.read_bytes()[:8], "little")
    header, tensors = MACE.read_bytes()[8 : 8 + length], MACE.read_bytes()[8 + length :]
    header += b" " * ((0x280 - length) % 0x10000)  # a length that begins as a pickle does
    path.write_bytes(len(header).to_bytes(8, "little") + header + tensors)
    assert path.read_bytes().startswith(b"\x80\2")
    assert Package.open(path).r_max == Package.open(MACE).r_max
    path.write_bytes(MACE.read_bytes()[:5000])
    refused(path, r"has 5000 bytes, expected more than the \d+ of its header: it is truncated")


def test_a_pipe_is_no_package(tmp_path: Path) -> None:
    """A pipe is refused as a package without waiting for a writer."""
    path = tmp_path / "pipe.mdcg"
    os.mkfifo(path)
    code = (
        "import signal, sys\nfrom pathlib import Path\nfrom mdcg import _core\n"
        "from mdcg.errors import PackageError\nfrom mdcg.package import Package\n"
        "from mdcg.package.file import is_package\n"
        "signal.alarm(20)\n"
        "for reader in (_core.Model, Package.open, ):\n"
        "    try:\n        reader(sys.argv[1])\n"
        "    except (_core.EngineError, PackageError) as error:\n        print(error)\n"
        "other = Path(sys.argv[1]).with_suffix('.model')\n"
        "Path(sys.argv[1]).rename(other)\nprint(is_package(other))"
    )
    assert isolated(code, path).count("is no file, expected a .mdcg package") == 2


def test_solid_harmonics_and_xplor_that_have_no_meaning(tmp_path: Path) -> None:
    p, rng, path = SmallPackage(["H"], 3.0), np.random.default_rng(0), tmp_path / "p.mdcg"
    radial = {
        "r_max": 3.0,
        "basis": {"kind": "bessel", "weights": p.tensor(np.ones(2)), "prefactor": 1.0},
        "cutoff": {"kind": "xplor", "start": 2.0},
        "cutoff_on": "weights",
        "layers": [{"weight": p.tensor(rng.normal(size=(2, 1))), "bias": p.tensor([1.0])}],
    }
    p.layer("edge_sum", out=p.value("sum", "1x0e"), radial=radial)
    p.layer("energy", x="sum", channel=0, scale=p.tensor([1.0]), shift=p.tensor([0.0]))
    p.write(path)
    refused(path, "xplor on its weights, expected on its basis")
    problem = ConvProblem.build("1x0e", "1x0e", "1x0e", [(0, 0, 0, "uvu", True)])
    problem = replace(problem, layout="ir_mul", dtype="float64")
    conv = {"problem": problem.to_json(), "x_table": p.tensor(np.ones((1, 1)))}
    p.manifest["layers"][0] = {
        "type": "conv",
        "name": "conv",
        "out": "sum",
        "harmonics": "solid",
        "radial": radial,
        **conv,
    }
    p.write(path)
    refused(path, "a bias in the last layer does not go with solid harmonics")
