"""Kernels for AMD's devices: which texts they take, and what is refused."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mdcg.errors import DeviceError, KernelCompileError, UnsupportedProblemError
from mdcg.package.cuda_kernels import cuda_passes
from mdcg.package.kernel_file import _engine_texts, check_targets
from mdcg.runtime import hiprtc

from ..engine.problems import build
from ..engine.test_conv_layer import two_layers
from ..processes import printed_by
from .test_cuda_errors import library


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Look for hiprtc in each test."""
    hiprtc.find_hiprtc.cache_clear()
    yield
    hiprtc.find_hiprtc.cache_clear()


def passes_of(manifest: dict[str, Any], tensors: Any, *, amd: bool) -> list[dict[str, Any]]:
    """Return passes, after checks of what all of a vendor's have in common."""
    passes, texts = cuda_passes(manifest["layers"], tensors, amd=amd)
    assert set(texts) == {key for one in passes for key in one["programs"]}
    for one in passes:
        assert one["target"].startswith("gfx" if amd else "sm_")
        for entry in one["entries"]:
            program = texts[one["programs"][entry["program"]]]
            wavefronts = program.startswith(hiprtc.WAVEFRONT_PER_WARP)
            assert wavefronts == (amd and manifest["layers"][one["layer"]]["type"] == "conv")
            assert entry["threads"] % (64 if wavefronts else 32) == 0
            assert 1 <= entry["max_warp_groups"] <= 1024 // entry["threads"]
            if amd:
                assert entry["shared_bytes"] * entry["max_warp_groups"] <= 65536
    return passes


@pytest.mark.parametrize("table", [True, False])
def test_texts_of_both_vendors(table: bool) -> None:
    package = two_layers(table=table).package
    amd = passes_of(package.manifest, package.tensors, amd=True)
    nvidia = passes_of(package.manifest, package.tensors, amd=False)
    assert {one["target"] for one in amd} == {"gfx900"}
    assert {(one["layer"], one["pass"]) for one in amd} == {
        (one["layer"], one["pass"]) for one in nvidia
    }


@pytest.mark.parametrize(
    ("features", "harmonics", "out", "dtype", "lacking"),
    [
        # more than 64 KiB of shared memory
        ("256x2e", "1x0e+1x1o+1x2e+1x3o", "256x0e", "float64", {"table_backward"}),
        ("512x1o", "1x0e+1x1o+1x2e+1x3o", "512x0e+512x1o+512x2e", "float32", {"table_backward"}),
        # more than 1,024 threads
        ("640x0e", "1x0e", "640x0e", "float64", {"table_forward", "table_backward"}),
    ],
)
def test_convolutions_that_are_too_large_for_amd(
    features: str, harmonics: str, out: str, dtype: str, lacking: set[str]
) -> None:
    """They have all kernels for NVIDIA's devices, and lack a pass for AMD's."""
    problem = build(features, harmonics, out, dtype)
    layer = {"type": "conv", "problem": problem.to_json(), "x": "x", "radial": {"layers": []}}
    both = {"table_forward", "table_backward"}
    assert {one["pass"] for one in passes_of({"layers": [layer]}, (), amd=False)} == both
    assert {one["pass"] for one in passes_of({"layers": [layer]}, (), amd=True)} == both - lacking


def test_no_vendor_runs_kernels_of_the_other(tmp_path: Path) -> None:
    package = two_layers(table=True)
    path = Path(package.write(tmp_path))
    manifest, tensors = package.package.manifest, package.package.tensors
    amd, nvidia = (passes_of(manifest, tensors, amd=amd) for amd in (True, False))
    assert _engine_texts(path, "gfx90a", amd + nvidia) == _engine_texts(path, "gfx90a", amd)
    assert _engine_texts(path, "sm_90", amd + nvidia) == _engine_texts(path, "sm_90", nvidia)
    message = r"target gfx90a: .* has no kernel for AMD's devices for the .* pass, because its"
    with pytest.raises(UnsupportedProblemError, match=message):
        _engine_texts(path, "gfx90a", nvidia)
    with pytest.raises(UnsupportedProblemError, match=r"target sm_90: .* has no CUDA kernel for"):
        _engine_texts(path, "sm_90", amd)
    # what would be refused is not read
    for one in amd:
        one["entries"] = one["entries"][:0]
    assert _engine_texts(path, "sm_90", amd + nvidia) == _engine_texts(path, "sm_90", nvidia)


class Comgr:
    """Names of architectures as a later comgr tells them."""

    NAMES = (
        *(b"amdgcn-amd-amdhsa--gfx90a", b"amdgcn-amd-amdhsa--gfx906:sramecc-:xnack+"),
        *(b"amdgcn-amd-amdhsa--gfx9-generic", b"amdgcn-amd-amdhsa--gfx9-4-generic"),
        *(b"amdgcn-amd-amdhsa--gfx1250-strict", b""),
    )

    def __init__(self, name: str) -> None:
        self.name = name

    def amd_comgr_get_isa_count(self, count: Any) -> int:
        count._obj.value = len(self.NAMES)
        return 0

    def amd_comgr_get_isa_name(self, number: Any, name: Any) -> int:
        name._obj.value = self.NAMES[number.value]
        return 0


def test_comgr_beside_hiprtc(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes before that of the loader's path, which may be of another version."""
    opened: list[str] = []

    def no_library(name: str) -> None:
        opened.append(name)
        raise OSError

    monkeypatch.setattr(hiprtc.ctypes, "CDLL", no_library)
    assert hiprtc._known_architectures("/opt/rocm/lib") == []
    assert opened[:3] == [f"/opt/rocm/lib/libamd_comgr.so{end}" for end in (".3", ".2", "")]
    assert opened[3:] == ["libamd_comgr.so.3", "libamd_comgr.so.2", "libamd_comgr.so"]


def test_names_of_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are no single architecture are passed over, and a target must be among others."""
    monkeypatch.setattr(hiprtc.ctypes, "CDLL", Comgr)
    known = hiprtc._known_architectures()
    assert known == [0x90A, 0x906]
    library = SimpleNamespace(version=(9, 0), architectures=known)
    monkeypatch.setattr(hiprtc, "_candidates", lambda: ["libhiprtc.so"])
    monkeypatch.setattr(hiprtc, "Hiprtc", lambda path: library)
    check_targets(["gfx90a", "gfx906"])
    message = r"hiprtc 9.0 .* does not compile for gfx942, only for gfx90a, gfx906: install a later"
    with pytest.raises(KernelCompileError, match=message):
        check_targets(["gfx942"])


def test_order_of_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MDCG_HIPRTC_LIB", raising=False)
    monkeypatch.setenv("ROCM_PATH", "/opt/rocm-6.2")
    tried = hiprtc._candidates()
    assert tried[0] == "/opt/rocm-6.2/lib/libhiprtc.so.7"
    assert tried[3:5] == ["/opt/rocm-6.2/lib/libhiprtc.so", "/opt/rocm/lib/libhiprtc.so.7"]
    assert tried[8:] == [
        *("libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"),
        "libamdhip64.so.5",
    ]


# A driver of HIP by its number of devices.
DRIVER = r"""
extern "C" {
int hipInit(unsigned) { return 0; }
int hipGetDeviceCount(int* count) { *count = DEVICES; return 0; }
}
"""


@pytest.mark.compiler(whole=True)
def test_order_of_drivers(tmp_path: Path) -> None:
    """The newest version in $ROCM_PATH that opens, then other folders; and the first reason."""
    if Path("/opt/rocm/lib").exists():
        pytest.skip("this machine has a ROCm of its own, which comes before the loader's path")
    rocm, loader = tmp_path / "rocm", tmp_path / "loader"
    for folder in (rocm / "lib", loader):
        folder.mkdir(parents=True)
    for devices, path in (
        (5, loader / "libamdhip64.so.5"),
        (2, rocm / "lib" / "libamdhip64.so"),
        (6, rocm / "lib" / "libamdhip64.so.6"),
        (7, rocm / "lib" / "libamdhip64.so.7"),
    ):
        library(DRIVER.replace("DEVICES", str(devices)), path)

    def said() -> str:
        code = "from mdcg import _core\ntry:\n    _core.parse_device('hip:99')\n"
        code += "except _core.EngineError as error:\n    print(error)"
        return printed_by(code, ROCM_PATH=str(rocm), LD_LIBRARY_PATH=str(loader))

    assert "there are hip:0 to hip:6: choose another one" in said()
    (rocm / "lib" / "libamdhip64.so.7").write_text("no library")
    assert "there are hip:0 to hip:5: choose another one" in said()
    (rocm / "lib" / "libamdhip64.so.6").unlink()
    assert "there are hip:0 to hip:1: choose another one" in said()
    (rocm / "lib" / "libamdhip64.so").unlink()
    assert "there are hip:0 to hip:4: choose another one" in said()
    for version in "567":
        (loader / f"libamdhip64.so.{version}").write_text("no library either")
    (loader / "libamdhip64.so").write_text("no library either")
    reason = f"cannot load {rocm}/lib/libamdhip64.so.7: .*file too short"
    assert re.search(f"there is no HIP driver [(]{reason}[)]: install AMD's", said())


def test_programs_are_compiled_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCm 5.2 ends the process if two threads use hiprtc at once."""
    running, most = 0, 0

    def compile_one(*_: Any) -> tuple[bool, bytes, str]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.01)
        running -= 1
        return True, b"code", ""

    monkeypatch.setattr(hiprtc.RuntimeCompiler, "compile", compile_one)
    libraries = [object.__new__(hiprtc.Hiprtc) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: libraries[n % 2].compile("", "", []), range(8)))
    assert most == 1


def test_torch_for_rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's build for ROCm has devices of the name cuda, which mdcg has no kernels for."""
    torch = pytest.importorskip("torch")
    from mdcg.calculators.torch_backend import as_device
    from mdcg.ops import kernels

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert kernels.torch_has_cuda()
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert not kernels.torch_has_cuda()
    with pytest.raises(DeviceError, match=r"'?cuda'? was requested, but .* for ROCm, not for CUDA"):
        as_device("cuda")
    with pytest.raises(DeviceError, match="built for ROCm, and patched models have no kernels"):
        kernels.cuda_device.__wrapped__(0)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDCG_HIPRTC_LIB", "/nonexistent/libhiprtc.so")
    with pytest.raises(KernelCompileError, match=r"MDCG_HIPRTC_LIB cannot be used \(.*: correct"):
        hiprtc.find_hiprtc()
    monkeypatch.delenv("MDCG_HIPRTC_LIB")
    monkeypatch.setattr(hiprtc, "_candidates", list)
    with pytest.raises(KernelCompileError, match=r"hiprtc, which .* was not found .*: install"):
        check_targets(["gfx90a"])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("gfx803", "target gfx803: kernels need gfx900 or later, expected gfx90a and the like"),
        ("gfx", "target gfx is unknown, expected any of native, .*gfx90a and the like for AMD's"),
    ],
)
def test_targets_that_are_refused(target: str, message: str) -> None:
    with pytest.raises(UnsupportedProblemError, match=message):
        check_targets([target])
