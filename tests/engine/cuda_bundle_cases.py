"""Packages with machine code for devices; run as cuda_cases.py is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.package import Package
from mdcg.package.bundle import add_binaries

from .cuda_cases import DATA, assert_equal, child, water, with_kernels
from .programs import graph, run
from .test_program import two_layers

EVALUATE = """
import json, sys
import numpy as np
from mdcg import _core
model = _core.Model(sys.argv[1], device="cuda")
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
    """Return what is bundled for the device: the oldest target that serves it."""
    capability = _core.cuda_compute_capability(0)
    return f"sm_{capability // 10 * 10}"


def steep(package: Package) -> None:
    """Let no table be exact enough for the radial networks."""
    for name, tensor in package.tensors.items():
        if name.endswith("radial.0.weight"):
            package.tensors[name] = 400 * tensor


def bundled(path: Path, *targets: str) -> Package:
    package = Package.open(path)
    add_binaries(package, targets or [target()])
    package.save(path)
    Package.open(path)  # checks it
    return package


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mace_water_float32", "plain"),
        ("mace_water_float64", "plain"),
        ("mace_water_float64", "steep"),
        ("nequip_water_float64", "plain"),
        ("mace_water_float32", "short"),
    ],
)
def test_no_compiler_is_needed(tmp_path: Path, name: str, kind: str) -> None:
    """Everything that is evaluated comes from the package: there is no NVRTC, and no cache."""
    package = Package.open(DATA / f"{name}.mdcg")
    if kind == "steep":
        steep(package)
    path = with_kernels(package, tmp_path / "p.mdcg")
    positions, types, cell = water()
    if kind == "short":  # than where splines begin
        positions[1] = positions[0] + [0.05, 0.0, 0.0]
    system = tmp_path / "system.npz"
    np.savez(system, positions=positions, types=types, cell=cell)
    options = {"cell": cell, "periodic": (True, True, True), "virials": True}
    plain = _core.Model(str(path), device="cuda")
    want = plain.evaluate(positions, types, **options)
    rows = plain.evaluate(positions, types, descriptors=True, **options)
    want["descriptors"] = rows["descriptors"]
    bundled(path)
    code = f"import sys; sys.argv = ['', {str(path)!r}, {str(system)!r}]" + EVALUATE
    cache = tmp_path / "cache"
    for change in ({"MDCG_NVRTC_LIB": "/nonexistent/libnvrtc.so"}, {"MDCG_DISABLE_JIT": "1"}):
        found, summary, report = json.loads(child(code, MDCG_CACHE_DIR=str(cache), **change))
        assert_equal(found, want)
        kernels = json.loads(report)["kernels"]
        assert {kernel["origin"] for kernel in kernels} == {"bundled"}
        assert {kernel["target"] for kernel in kernels} == {target()}
        assert summary.endswith(f"kernels: {len(kernels)} bundled")
        names = {kernel["name"] for kernel in kernels}
        assert any("radial_forward" in each for each in names) == (kind != "plain")
    assert not list(cache.rglob("*.cubin"))


def test_code_of_another_version_is_compiled_again(tmp_path: Path) -> None:
    """Or one sentence says what to do."""
    path = with_kernels(two_layers().package(), tmp_path / "p.mdcg")
    g = graph(9, box=3.5)
    want = run(_core.Model(str(path), device="cuda"), g)
    package = bundled(path)
    # as if one text had changed since
    package.manifest["cuda_binaries"][0]["key"] = "0" * 32
    package.manifest["mdcg_version"] = "0.0.1"
    package.save(path)
    cuda = _core.Model(str(path), device="cuda")
    assert_equal(run(cuda, g), want)
    kernels = json.loads(cuda.report())["kernels"]
    (other,) = [kernel for kernel in kernels if kernel["origin"] != "bundled"]
    assert "is not what this version of mdcg" in other["why"]
    assert other["why"].endswith("it was made by 0.0.1")
    code = f"""
from mdcg import _core
try:
    _core.Model({str(path)!r}, device="cuda").prepare()
except _core.EngineError as error:
    print(error.kind, error)
"""
    changes = {"MDCG_CACHE_DIR": str(tmp_path / "no"), "MDCG_NVRTC_LIB": "/nonexistent"}
    said = child(code, **changes)
    assert said.startswith(f"4 the package's machine code for {target()} is not what this version")
    assert ", and the NVRTC library named by MDCG_NVRTC_LIB cannot be used" in said
    own = f"sm_{_core.cuda_compute_capability(0)}"
    assert said.endswith(f"or bundle it again with this version (mdcg-patch --bundle {own})")
    assert "\n" not in said


def test_other_precisions_need_a_compiler(tmp_path: Path) -> None:
    path = with_kernels(two_layers("float32").package(), tmp_path / "p.mdcg")
    bundled(path)
    code = f"""
from mdcg import _core
try:
    _core.Model({str(path)!r}, device="cuda", precision="tf32").prepare()
except _core.EngineError as error:
    print(error.kind, error)
"""
    changes = {"MDCG_CACHE_DIR": str(tmp_path / "no"), "MDCG_NVRTC_LIB": "/nonexistent"}
    said = child(code, **changes)
    assert said.startswith(f"4 the package's machine code for {target()} is of precision fp32 ")
    assert said.endswith("; or leave the precision out")


def test_code_for_other_devices_is_passed_over(tmp_path: Path) -> None:
    path = with_kernels(two_layers().package(), tmp_path / "p.mdcg")
    package = bundled(path)
    g = graph(9, box=3.5)
    capability = _core.cuda_compute_capability(0)
    for code, origin in (
        (capability // 10 * 10, "bundled"),  # an older device of the generation
        (capability + 1, "other"),
        (capability + 10, "other"),
        (capability - 10, "other"),
    ):
        for binary in package.manifest["cuda_binaries"]:
            binary["target"] = f"sm_{code}"
        package.save(path)
        cuda = _core.Model(str(path), device="cuda")
        run(cuda, g)
        kernels = json.loads(cuda.report())["kernels"]
        assert all((kernel["origin"] == "bundled") == (origin == "bundled") for kernel in kernels)
        assert not any("why" in kernel for kernel in kernels)


def test_code_that_the_driver_refuses(tmp_path: Path) -> None:
    path = with_kernels(two_layers().package(), tmp_path / "p.mdcg")
    g = graph(9, box=3.5)
    want = run(_core.Model(str(path), device="cuda"), g)
    package = bundled(path)
    wrong = np.frombuffer(b"\x7fELF and nothing else", dtype=np.uint8)
    digest = _core.sha256(wrong.tobytes())
    for binary in package.manifest["cuda_binaries"]:
        package.tensors[binary["tensor"]] = wrong
        binary["sha256"] = digest
    package.save(path)
    cuda = _core.Model(str(path), device="cuda")
    assert_equal(run(cuda, g), want)
    for kernel in json.loads(cuda.report())["kernels"]:
        assert kernel["origin"] in ("cached", "compiled")
        assert kernel["why"].startswith("the device refuses the package's machine code for sm_")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda b: b.update(sha256="0" * 64), "its SHA-256 differs"),
        (lambda b: b.update(target="sm_x"), "field target is .*sm_x.*, expected a target such"),
        (lambda b: b.update(tensor="none"), "field tensor is .*none.*, expected a tensor"),
        (lambda b: b.pop("key"), "key"),
    ],
)
def test_damaged_code_is_refused(tmp_path: Path, change: Any, sentence: str) -> None:
    path = with_kernels(two_layers().package(), tmp_path / "p.mdcg")
    package = bundled(path)
    for binary in package.manifest["cuda_binaries"]:
        change(binary)
    package.save(path)
    with pytest.raises(_core.EngineError, match=sentence) as error:
        _core.Model(str(path), device="cuda").prepare()
    assert error.value.kind == 2
    assert "\n" not in str(error.value)
    _core.Model(str(path), kernels="generic").prepare()  # processors read none of it


def test_bundling_again_replaces(tmp_path: Path) -> None:
    path = with_kernels(two_layers().package(), tmp_path / "p.mdcg")
    before = path.read_bytes()
    first = bundled(path).to_bytes()
    assert bundled(path).to_bytes() == first
    package = Package.open(path)
    add_binaries(package, [])
    assert package.to_bytes() == before
