"""Package files: what is written, what is read again, and what is refused in one sentence."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mdcg
from mdcg.errors import PackageError, printable
from mdcg.package import Package
from mdcg.package.builder import Builder, Radial, RadialLayer
from mdcg.package.file import FORMAT
from mdcg.package.linear_map import LinearMap
from mdcg.problem import ConvProblem
from mdcg.problem.irreps import Irreps

from ..processes import printed_by


def small_radial(outputs: int, rng: np.random.Generator) -> Radial:
    weights = np.pi / 3.0 * np.arange(1.0, 5.0)
    return Radial(
        r_max=3.0,
        basis={"kind": "bessel", "weights": weights, "prefactor": 0.8},
        p=6,
        layers=(
            RadialLayer(rng.normal(size=(4, 8)), activation="silu", factor=1.7),
            RadialLayer(rng.normal(size=(8, outputs))),
        ),
    )


def small_package(dtype: str = "float64") -> Package:
    """Return a package of one convolution, by the builder."""
    rng = np.random.default_rng(7)
    builder = Builder(2, dtype)
    types = builder.table("3x0e", rng.normal(size=(2, 3)))
    problem = ConvProblem.build("3x0e", "0e+1o", "3x0e+3x1o", [(0, 0, 0), (0, 1, 1)])
    x = builder.conv(types, problem, small_radial(problem.weight_numel, rng), "conv")
    into, out = Irreps.parse("3x0e+3x1o"), Irreps.parse("1x0e")
    x = builder.linear(x, LinearMap(into, out, {(0, 0): rng.normal(size=(3, 1))}), "readout")
    builder.energy(x, np.ones(1), np.array([-1.0, -2.0]), "energy")
    program, tensors = builder.finish()
    manifest = {
        "mdcg_version": "0",
        "architecture": "test",
        "model_class": "Test",
        "type_names": ["H", "O"],
        "atomic_numbers": [1, 8],
        "r_max": 3.0,
        "dtype": dtype,
        "energy_unit": "eV",
        "length_unit": "angstrom",
        "head": None,
        "source": None,
        "edge_vector": "receiver_minus_sender",
        "verification": None,
        "options": {},
        **program,
    }
    package = Package(manifest, tensors)
    package.check()
    return package


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.mdcg"
    small_package().save(path)
    return path


def rewrite(path: Path, change: Any) -> None:
    """Apply a change to the manifest of a package and write the file again."""
    package = Package.open(path)
    change(package.manifest)
    package.save(path)


def test_round_trip(file: Path) -> None:
    package = Package.open(file)
    assert package.type_names == ["H", "O"]
    assert package.manifest["format"] == FORMAT
    assert package.to_bytes() == file.read_bytes()
    assert package.to_bytes() == small_package().to_bytes()
    assert small_package("float32").tensor("readout.weight_0_0").dtype == np.float32


def test_any_tool_lists_it(file: Path) -> None:
    from safetensors import safe_open

    with safe_open(file, framework="numpy") as archive:
        assert set(archive.keys()) == set(Package.open(file).tensors)
        assert json.loads(archive.metadata()["mdcg"])["format"] == FORMAT


def test_reading_a_manifest_needs_no_framework(file: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom mdcg.cli.package_info import describe_package\n"
        f"result, text = describe_package(Path({str(file)!r}))\n"
        "assert 'conv' in text\nprint(*sorted({'torch', 'ase', 'e3nn'} & set(sys.modules)))"
    )
    assert not printed_by(code).strip()


@pytest.mark.parametrize(
    "change",
    [
        *({"layers": value} for value in (7, [7], None, [[]], [{"radial": 7}])),
        *({"layers": [{"radial": {"table": value}}]} for value in (7, {"x": 4})),
        *({"type_names": value} for value in (None, 7)),
        *({"verification": value} for value in ({}, {"below": 7}, {"below": {"x": "y"}})),
        *({"values": value} for value in ([], 7, None)),
    ],
    ids=str,
)
def test_absurd_manifests_are_described_in_a_sentence(
    file: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    from mdcg.cli.main import main

    rewrite(file, lambda manifest: manifest.update(change))
    assert main(["patch", str(file), "--info"]) == 4
    printed = capsys.readouterr()
    assert not printed.out
    assert re.search(r"small\.mdcg: (the )?manifest", printed.err)
    assert len(printed.err.strip().splitlines()) == 1


STRANGE = "a\x1b[31m\nb\u202ec\x9b\ufeffÅ"
SHOWN = r"a\x1b[31m\nb\u202ec\x9b\ufeffÅ"


def strange_names(manifest: dict[str, Any]) -> None:
    manifest.update(type_names=[STRANGE, "O"], model_class=STRANGE, head=STRANGE)
    manifest.update(mdcg_version=STRANGE, source={"name": STRANGE, "sha256": STRANGE})
    manifest["verification"] = {"passed": True, "below": {STRANGE: 1.0}}
    for layer in manifest["layers"]:
        for key in ("name", "x", "out"):
            if key in layer:
                layer[key] += STRANGE
    manifest["values"] = {name + STRANGE: irreps for name, irreps in manifest["values"].items()}


def test_text_from_a_file_is_shown_and_not_obeyed(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mdcg import _core
    from mdcg.cli.main import main

    rewrite(file, strange_names)
    lines = {}
    for option in ((), ("--json",)):
        assert main(["patch", str(file), "--info", *option]) == 0
        text = capsys.readouterr().out
        assert not re.search("[^\n\x20-\x7eÅ…]", text)
        lines[option] = text.count("\n")
        assert text.count(SHOWN if not option else json.dumps(SHOWN, ensure_ascii=False)[1:-1]) > 8
    assert lines[()] < 14
    model = _core.Model(str(file))
    assert model.type_names == [SHOWN, "O"] == Package.open(file).type_names
    assert model.model_class == json.loads(model.manifest)["head"] == SHOWN
    calc = mdcg.MDCGCalculator(file, species_types={"H": SHOWN, "O": "O"})
    assert SHOWN in repr(calc)
    assert repr(calc).isprintable()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["layers"][0].update(type=STRANGE),
        lambda m: m.update(dtype=STRANGE),
        lambda m: m["layers"][1].update(x=STRANGE),
        lambda m: m["values"].update(conv=STRANGE),
    ],
)
def test_errors_are_printable(file: Path, change: Any, tmp_path: Path) -> None:
    from mdcg import _core

    rewrite(file, change)
    other = tmp_path / "line\nbreak.mdcg"
    other.write_bytes(file.read_bytes())
    for error, read in ((PackageError, Package.open), (_core.EngineError, _core.Model)):
        with pytest.raises(error) as caught:
            read(str(other))
        assert str(caught.value).isprintable()
        assert r"line\nbreak" in str(caught.value)
        assert "x1b[31m" in str(caught.value)


def test_python_and_the_engine_escape_the_same(file: Path) -> None:
    from mdcg import _core

    every = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x10400), 0x10FFFF)))
    rewrite(file, lambda manifest: manifest.update(model_class=every))
    assert _core.Model(str(file)).model_class == printable(every)
    assert Package.open(file).manifest["model_class"] == printable(every) != every


def test_names_at_the_top(file: Path) -> None:
    code = (
        "import sys, mdcg\n"
        f"assert mdcg.Package.open({str(file)!r}).r_max == 3.0\n"
        "assert mdcg.ConversionOptions().dtype is None and callable(mdcg.convert_checkpoint)\n"
        "try:\n    mdcg.Package.open('none.mdcg')\nexcept mdcg.PackageError:\n    pass\n"
        "print(*sorted({'torch', 'ase', 'e3nn'} & set(sys.modules)))"
    )
    assert not printed_by(code).strip()


def test_every_truncation_is_refused(file: Path) -> None:
    data = file.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, len(data) // 2, len(data) - 1]:
        file.write_bytes(data[:length])
        with pytest.raises(PackageError, match=r"small\.mdcg") as caught:
            Package.open(file)
        assert "\n" not in str(caught.value)
    file.write_bytes(data + b"x")
    with pytest.raises(PackageError):
        Package.open(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.manifest["values"].update(other="1x0e"), "no layer writes"),
        (lambda p: p.manifest["layers"].pop(2), "no layer gives an energy, expected energy or"),
        (lambda p: p.tensors.update(other=np.array([np.nan])), "other has the value nan .* finite"),
    ],
)
def test_what_only_packages_that_are_converted_must_have(
    file: Path, change: Any, message: str
) -> None:
    """Packages with unwritten values, without energies or with NaN are refused."""
    package = Package.open(file)
    change(package)
    package.save(file)
    with pytest.raises(PackageError, match=message):
        Package.open(file)


def test_other_files(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    with pytest.raises(PackageError, match=r"none\.mdcg: cannot be opened: No such file"):
        Package.open(tmp_path / "none.mdcg")
    save_file({"a": np.zeros(3)}, tmp_path / "other.mdcg")
    with pytest.raises(PackageError, match=r"without the manifest of a \.mdcg package"):
        Package.open(tmp_path / "other.mdcg")
    (tmp_path / "zip.mdcg").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(PackageError, match=r"is a zip archive, .* expected a \.mdcg package"):
        Package.open(tmp_path / "zip.mdcg")


def test_only_files_are_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "p.mdcg"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(PackageError, match=f"^{path} is not a regular file, expected"):
            small_package().save(path)
    assert pipe.is_fifo()
    link, target = tmp_path / "link.mdcg", tmp_path / "folder" / "target.mdcg"
    target.parent.mkdir()
    for before in (None, b"precious"):  # a dangling link, and a link to a file
        if before:
            target.write_bytes(before)
        else:
            link.symlink_to(target)
        small_package().save(link)
        assert link.is_symlink()
        assert target.read_bytes() == small_package().to_bytes()


def test_tensors_of_any_name(tmp_path: Path) -> None:
    package = small_package()
    package.tensors |= {f"a.{name}": np.ones(1) for name in ("{0}", "{x}", "{", "%s", "\0", "é")}
    package.save(tmp_path / "p.mdcg")
    assert len(Package.open(tmp_path / "p.mdcg").tensors) == len(package.tensors)


# ---- what the builder folds ----


def test_maps_compose(rng: np.random.Generator) -> None:
    first = LinearMap(
        Irreps.parse("2x0e+3x1o"),
        Irreps.parse("4x0e+2x1o"),
        {(0, 0): rng.normal(size=(2, 4)), (1, 1): rng.normal(size=(2, 3, 2))},
        {0: rng.normal(size=4)},
    )
    second = LinearMap(
        Irreps.parse("1x0e+3x0e+2x1o"),
        Irreps.parse("5x0e+1x1o"),
        {(1, 0): rng.normal(size=(2, 3, 5)), (2, 1): rng.normal(size=(2, 1))},
        {0: rng.normal(size=(2, 5))},
    )
    rows = rng.normal(size=(2, 11))
    want = second.from_blocks(first.irreps_out).apply(first.apply(rows))
    np.testing.assert_allclose(first.then(second).apply(rows), want, rtol=1e-13)
    cut = Irreps.parse("2x0e+3x0e+1x1o")
    np.testing.assert_allclose(second.to_blocks(cut).irreps_out.dim, second.irreps_out.dim)


def test_types_go_into_biases(rng: np.random.Generator) -> None:
    package_of = Builder(2, "float64")
    irreps = Irreps.parse("3x0e")
    table = package_of.table("3x0e", rng.normal(size=(2, 3)))
    x = package_of.stored(table, "start")
    y = package_of.linear(x, LinearMap(irreps, irreps, {(0, 0): np.eye(3)}), "map")
    z = package_of.sum([y, table], "total")
    assert z.name == "map"  # the sum adds no layer
    package_of.energy(z, np.ones(1), np.zeros(1), "energy")
    program, tensors = package_of.finish()
    (linear,) = (layer for layer in program["layers"] if layer["type"] == "linear")
    np.testing.assert_array_equal(tensors[linear["bias"][0]["value"]], table.table)


@pytest.mark.parametrize("name", ["mace_water_float64", "nequip_water_float32"])
def test_packages_of_format_1_are_written_as_they_are_read(name: str, tmp_path: Path) -> None:
    path = Path(__file__).parents[1] / "data" / f"{name}.mdcg"
    package = Package.open(path)
    assert package.manifest["format"] == 1
    package.save(tmp_path / "copy.mdcg")
    copy = Package.open(tmp_path / "copy.mdcg")
    assert copy.manifest == package.manifest
    package.check()
