"""Where the kernels of a package come from: bundle, cache, compiler, or generic ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.errors import KernelCompileError, UnsupportedProblemError
from mdcg.package import Package
from mdcg.package.bundle import add_binaries
from mdcg.package.kernels import add_kernels

from .programs import graph, run
from .test_program import two_layers

LEVELS = ["x86-64-v2", "x86-64-v3", "x86-64-v4"]


def with_kernels(dtype: str = "float64") -> Package:
    """A package of two layers with the source of their kernels."""
    package = two_layers(dtype).package()
    package.manifest["kernels"] = add_kernels(package.manifest["layers"], package.tensors)
    assert package.manifest["kernels"]
    return package


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, shared_cache: Path) -> None:
    """Whatever compiler there is, and what these tests have compiled before."""
    monkeypatch.setenv("MDCG_CACHE_DIR", str(shared_cache))
    monkeypatch.delenv("MDCG_DISABLE_JIT", raising=False)


@pytest.fixture
def no_compiler(compiler: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "empty"))
    for name in ("MDCG_CXX", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def evaluate(package: Package, path: Path, kernels: str = "auto") -> tuple[dict[str, Any], list]:
    """Return results, and what the report says of the kernels."""
    package.save(path)
    model = _core.Model(str(path), kernels=kernels)
    before = json.loads(model.report())["kernels"]
    assert origins(before) <= {"not loaded"}, "opening must load nothing"
    found = run(model, graph(), virial=True)
    return found, json.loads(model.report())["kernels"]


def origins(kernels: list[dict[str, Any]]) -> set[str]:
    return {kernel["origin"] for kernel in kernels}


def compare(got: dict[str, Any], want: dict[str, Any], limit: float) -> None:
    for name, value in want.items():
        scale = np.abs(value).max()
        assert np.abs(got[name] - value).max() <= limit * scale, name


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-13), ("float32", 5e-6)])
def test_compiled_then_cached_and_equal_to_generic(
    compiler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, limit: float
) -> None:
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "new"))
    package = with_kernels(dtype)
    generic, kernels = evaluate(package, tmp_path / "p.mdcg", "generic")
    assert origins(kernels) == {"generic"}
    assert all("was asked for" in kernel["why"] for kernel in kernels)
    compiled, kernels = evaluate(package, tmp_path / "p.mdcg")
    assert origins(kernels) == {"compiled"}
    assert {kernel["target"] for kernel in kernels} == {_core.host_target("native")}
    cached, kernels = evaluate(package, tmp_path / "p.mdcg", "generated")
    assert origins(kernels) == {"cached"}
    compare(compiled, generic, limit)
    compare(cached, compiled, 0.0)


def test_generic_without_a_compiler(no_compiler: None, tmp_path: Path) -> None:
    package = with_kernels()
    _, kernels = evaluate(package, tmp_path / "p.mdcg")
    assert origins(kernels) == {"generic"}
    assert all("no C++ compiler was found" in kernel["why"] for kernel in kernels)
    with pytest.raises(_core.EngineError, match="no C\\+\\+ compiler was found") as error:
        evaluate(package, tmp_path / "p.mdcg", "generated")
    assert error.value.kind == 4


def test_bundles_need_neither_compiler_nor_cache(
    compiler: None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    package = with_kernels()
    own = _core.instruction_set_level()
    if own not in LEVELS:
        pytest.skip("levels are of x86-64")
    add_binaries(package, LEVELS)
    request.getfixturevalue("no_compiler")
    found, kernels = evaluate(package, tmp_path / "p.mdcg", "generated")
    assert origins(kernels) == {"bundled"}
    assert {kernel["target"] for kernel in kernels} == {own}, "not the best for this processor"
    generic, _ = evaluate(package, tmp_path / "p.mdcg", "generic")
    compare(found, generic, 1e-13)


def test_native_bundle_is_best_and_for_this_processor_alone(
    compiler: None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    package = with_kernels()
    levels = [level for level in LEVELS[:2] if _core.instruction_set_level() in LEVELS]
    add_binaries(package, [*levels, "native"])
    again = with_kernels()
    add_binaries(again, [*levels, "native"])
    assert package.to_bytes() == again.to_bytes()
    request.getfixturevalue("no_compiler")
    _, kernels = evaluate(package, tmp_path / "p.mdcg")
    assert {kernel["target"] for kernel in kernels} == {_core.host_target("native")}
    for kernel in package.manifest["kernels"]:
        kernel["binaries"] = kernel["binaries"][-1:]
        kernel["binaries"][0]["target"] = "native-x86-64-v3-of another"
    _, kernels = evaluate(package, tmp_path / "p.mdcg")
    assert origins(kernels) == {"generic"}


def test_damaged_bundles(compiler: None, tmp_path: Path) -> None:
    package = with_kernels()
    add_binaries(package, ["native"])
    name = package.manifest["kernels"][0]["binaries"][0]["tensor"]
    altered = package.tensors[name].copy()
    altered[len(altered) // 2] ^= 1
    package.tensors[name] = altered
    with pytest.raises(_core.EngineError, match=r"is damaged .its SHA-256 differs.") as error:
        evaluate(package, tmp_path / "p.mdcg")
    assert error.value.kind == 2


def test_binaries_that_cannot_be_loaded_are_compiled(compiler: None, tmp_path: Path) -> None:
    import hashlib

    package = with_kernels()
    add_binaries(package, ["native"])
    for kernel in package.manifest["kernels"]:
        nothing = b"no library"
        package.tensors[kernel["binaries"][0]["tensor"]] = np.frombuffer(nothing, np.uint8)
        kernel["binaries"][0]["sha256"] = hashlib.sha256(nothing).hexdigest()
    _, kernels = evaluate(package, tmp_path / "p.mdcg")
    assert origins(kernels) <= {"cached", "compiled"}


def test_text_that_is_no_kernel(compiler: None, tmp_path: Path) -> None:
    package = with_kernels()
    name = package.manifest["kernels"][0]["source"]
    package.tensors[name] = np.frombuffer(b"int x = ;", np.uint8)
    _, kernels = evaluate(package, tmp_path / "p.mdcg")
    why = [kernel["why"] for kernel in kernels if kernel["origin"] == "generic"]
    assert len(why) == 1
    assert "rejected a generated kernel" in why[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(kernels={}), "`kernels` is no list"),
        (lambda m: m["kernels"].append("x"), "a kernel has no `name`"),
        (lambda m: m["kernels"][0].pop("source"), "has no `source`"),
        (lambda m: m["kernels"][0].update(source="nowhere"), "no tensor of bytes"),
        (lambda m: m["kernels"][0].update(binaries=3), "`binaries` of kernel .* is no list"),
        (lambda m: m["kernels"][0].update(binaries=[{}]), "a binary of kernel .* has no `target`"),
        (lambda m: m["kernels"].append(m["kernels"][0]), "two kernels have the name"),
        (lambda m: m["kernels"].clear(), "names the kernel .* which the package does not have"),
    ],
)
def test_manifests_that_make_no_sense(tmp_path: Path, change: Any, message: str) -> None:
    package = with_kernels()
    change(package.manifest)
    with pytest.raises(_core.EngineError, match=message) as error:
        evaluate(package, tmp_path / "p.mdcg")
    assert error.value.kind == 2


def test_unknown_modes_and_targets(tmp_path: Path) -> None:
    package = with_kernels()
    with pytest.raises(_core.EngineError, match="kernels is 'fast', expected auto, generic or gen"):
        evaluate(package, tmp_path / "p.mdcg", "fast")
    with pytest.raises(UnsupportedProblemError, match=r"sm_90: layer 0 .conv. has no CUDA kernel"):
        add_binaries(package, ["sm_90"])
    with pytest.raises(UnsupportedProblemError, match="no such target, expected any of native"):
        add_binaries(package, ["x86-64-v5"])


def test_bundling_without_a_compiler(no_compiler: None) -> None:
    with pytest.raises(KernelCompileError, match="for native: no C\\+\\+ compiler was found"):
        add_binaries(with_kernels(), ["native"])


def test_kernels_without_their_functions(compiler: None, tmp_path: Path) -> None:
    """As another project's library would be: the generic kernels run, or an error says it."""
    package = with_kernels()
    for kernel in package.manifest["kernels"]:
        name = kernel["source"]
        package.tensors[name] = np.frombuffer(b'extern "C" int nothing = 1;\n', dtype=np.uint8)
    found, kernels = evaluate(package, tmp_path / "p.mdcg")
    assert origins(kernels) == {"generic"}
    assert all("has no function mdcg_con" in kernel["why"] for kernel in kernels)
    generic, _ = evaluate(package, tmp_path / "p.mdcg", "generic")
    compare(found, generic, 0.0)
    with pytest.raises(_core.EngineError, match=r"has no function .* convert the model") as error:
        evaluate(package, tmp_path / "p.mdcg", "generated")
    assert error.value.kind == 4
