"""Files of compiled kernels for devices; run like cuda_cases.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.package import Package
from mdcg.package.kernel_file import compile_kernels
from mdcg.runtime.nvrtc import compile_cuda

from ..processes import printed_by
from .cuda_cases import DATA, assert_equal, saved, water
from .kernel_files import Change, altered, cached, plant, with_code
from .programs import graph, run
from .test_program import two_layers

EVALUATE = """
import json, sys
import numpy as np
from mdcg import _core
model = _core.Model(sys.argv[1], device="cuda", kernels=sys.argv[3])
system = np.load(sys.argv[2])
options = {"cell": system["cell"], "periodic": (True, True, True), "virials": True}
for _ in range(3):  # layer by layer, captured, replayed
    found = model.evaluate(system["positions"], system["types"], **options)
rows = model.evaluate(system["positions"], system["types"], descriptors=True, **options)
found["descriptors"] = rows["descriptors"]
found = {name: np.asarray(value).tolist() for name, value in found.items()}
print(json.dumps([found, model.summary(), model.report()]))
"""


def target() -> str:
    """Return the target to bundle for the device: the oldest one that it supports."""
    capability = _core.cuda_compute_capability(0)
    return f"sm_{capability // 10 * 10}"


_compiled: dict[bytes, bytes] = {}  # files of kernels by what is in the package


def kernels_of(path: Path) -> str:
    """Write a file of kernels beside a package; return its name."""
    file, package = path.with_suffix(".mdcg-kernels"), path.read_bytes()
    if package not in _compiled:
        _compiled[package] = compile_kernels(path, [target()])
    file.write_bytes(_compiled[package])
    return str(file)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mace_water_float32", "plain"),
        ("mace_water_float64", "plain"),
        ("nequip_water_float64", "plain"),
        ("mace_water_float32", "short"),
    ],
)
def test_no_compiler_is_needed(tmp_path: Path, name: str, kind: str) -> None:
    """With a file of kernels, a package runs without NVRTC, Python and the kernel cache."""
    package = Package.open(DATA / f"{name}.mdcg")
    path = saved(package, tmp_path / "p.mdcg")
    positions, types, cell = water()
    if kind == "short":
        positions[1] = positions[0] + [0.05, 0.0, 0.0]
    system = tmp_path / "system.npz"
    np.savez(system, positions=positions, types=types, cell=cell)
    options = {"cell": cell, "periodic": (True, True, True), "virials": True}
    plain = _core.Model(str(path), device="cuda")
    want = plain.evaluate(positions, types, **options)
    rows = plain.evaluate(positions, types, descriptors=True, **options)
    want["descriptors"] = rows["descriptors"]
    file = kernels_of(path)
    cache = tmp_path / "cache"
    changes = {"MDCG_NVRTC_LIB": "/nonexistent/libnvrtc.so", "MDCG_PYTHON": "/nonexistent"}
    found, summary, report = json.loads(
        printed_by(EVALUATE, path, system, file, MDCG_CACHE_DIR=str(cache), **changes)
    )
    assert_equal(found, want)
    kernels = json.loads(report)["kernels"]
    assert {kernel["origin"] for kernel in kernels} == {"named"}
    assert {kernel["target"] for kernel in kernels} == {target()}
    assert summary.endswith(f"kernels: {len(kernels)} named")
    assert not list(cache.rglob("*.cubin"))


@pytest.mark.parametrize(
    ("name", "which", "field", "number"),
    [
        ("mace_water_float32", "table_forward", "degree", 4),
        ("mace_water_float32", "table_backward", "degree", 6),
        ("mace_water_float32", "table_forward", "degree", None),
        ("mace_water_float32", "table_forward", "singles", 4),
        ("mace_water_float64", "table_", "degree", 8),
        ("mace_water_float64", "table_backward", "degree", 3),
        ("mace_water_float64", "table_backward", "singles", None),
    ],
)
def test_kernels_for_other_tables_are_refused(
    tmp_path: Path, name: str, which: str, field: str, number: int | None
) -> None:
    path = saved(Package.open(DATA / f"{name}.mdcg"), tmp_path / "p.mdcg")
    file = Path(kernels_of(path))

    def change(manifest: dict[str, Any], _: object) -> None:
        for each in manifest["passes"]:
            if each["pass"].startswith(which):
                each.pop(field)
                each.update({} if number is None else {field: number})

    file.write_bytes(altered(file, change))
    positions, types, cell = water()
    with pytest.raises(_core.EngineError, match="another kind of radial network: make the file"):
        _core.Model(str(path), device="cuda", kernels=str(file)).evaluate(
            positions, types, cell=cell, periodic=(True, True, True)
        )


def test_code_for_other_devices_is_refused(tmp_path: Path) -> None:
    path = saved(two_layers().package(), tmp_path / "p.mdcg")
    file = Path(kernels_of(path))
    own = file.read_bytes()
    capability = _core.cuda_compute_capability(0)
    for code, fits in (
        (capability // 10 * 10, True),  # an older device of the generation
        (capability + 1, False),
        (capability + 10, False),
        (capability - 10, False),
    ):
        file.write_bytes(own)

        def rename(manifest: dict[str, Any], _: object, to: str = f"sm_{code}") -> None:
            manifest["devices"] = {to: manifest["devices"][target()]}

        file.write_bytes(altered(file, rename))
        if fits:
            run(_core.Model(str(path), device="cuda", kernels=str(file)), graph(9, box=3.5))
            continue
        with pytest.raises(_core.EngineError, match=f"has no kernels for sm_{capability}: make"):
            _core.Model(str(path), device="cuda", kernels=str(file))


def test_code_that_the_driver_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused machine code in the cache is compiled again; in a named file it is an error."""
    program, _ = compile_cuda('extern "C" __global__ void k(long long n) {}', target())
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "cache"))
    path = saved(two_layers().package(), tmp_path / "p.mdcg")
    g = graph(9, box=3.5)
    want = run(_core.Model(str(path), device="cuda"), g)
    file = cached(tmp_path / "cache")
    for number, code in enumerate((b"\x7fELF and nothing else", program)):
        wrong = altered(file, with_code(code))
        file.write_bytes(wrong)
        file.with_name("kernel.sha256").write_text(_core.sha256(wrong))
        for origin in ("made", "cached"):
            cuda = _core.Model(str(path), device="cuda")
            assert_equal(run(cuda, g), want)
            kernels = json.loads(cuda.report())["kernels"]
            assert {kernel["origin"] for kernel in kernels} == {origin}
        named = tmp_path / f"{number}.mdcg-kernels"
        named.write_bytes(wrong)
        with pytest.raises(_core.EngineError, match="cannot load machine code for sm_") as error:
            run(_core.Model(str(path), device="cuda", kernels=str(named)), g)
        assert error.value.kind == 9


def test_code_in_packages_of_format_1_is_never_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "p.mdcg", tmp_path / "mark"
    source = DATA / "mace_water_float64.mdcg"
    plant(source, path, mark)
    positions, types, cell = water()
    options = {"cell": cell, "periodic": (True, True, True)}
    want, found = (
        _core.Model(str(each), device="cuda").evaluate(positions, types, **options)
        for each in (source, path)
    )
    assert_equal(found, want)
    assert not mark.exists()


def change_pass(**changes: Any) -> Change:
    """Change the description of the forward pass of a contraction, which is always used."""

    def change(manifest: dict[str, Any], _: object) -> None:
        (found, *_others) = (
            each
            for each in manifest["passes"]
            if each["pass"] == "forward" and set(each["widths"]) == {"x", "w", "out"}
        )
        found.update(changes)

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (change_pass(layer=77), "has no CUDA kernel for the forward pass"),
        (change_pass(arguments=["edge"]), "field arguments is .*edge"),
        (change_pass(zeroed=["w"]), "field zeroed is w, expected out, dx or dy"),
        (change_pass(programs=[]), "field program "),
        (change_pass(programs=["nothing"]), "has no machine code of "),
        (change_pass(entries=[]), "field entries is empty"),
        (change_pass(target="gfx"), "field target is .*gfx"),
        # nothing of another vendor's kernels is read
        (change_pass(target="gfx900", entries=[]), "has no CUDA kernel for the forward pass"),
        (change_pass(widths={"x": 1}), "field widths is 1, expected .* items in a row of x"),
        (change_pass(run=None), "field run"),
    ],
)
def test_damaged_descriptions_are_refused(tmp_path: Path, change: Change, sentence: str) -> None:
    path = saved(two_layers().package(), tmp_path / "p.mdcg")
    file = Path(kernels_of(path))
    file.write_bytes(altered(file, change))
    with pytest.raises(_core.EngineError, match=sentence) as error:
        _core.Model(str(path), device="cuda", kernels=str(file)).prepare()
    assert "\n" not in str(error.value)
