"""Files of a package's compiled kernels, which ``python -m mdcg kernels`` writes.

``FORMAT.md`` describes the format. The engine reads a file that the user names, or files in the
cache.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._version import __version__
from ..errors import OutputError, PackageError, UnsupportedProblemError
from ..runtime.cache import why_not_kept

SUFFIX = ".mdcg-kernels"
_UNSUPPORTED = 3  # MDCG_ERROR_UNSUPPORTED of mdcg.h
#: Version of the manifest that is written.
FORMAT = 1
KEY = "mdcg_kernels"
#: Targets of CPU kernels; "native" is the CPU of this machine.
TARGETS = ("native", "x86-64-v2", "x86-64-v3", "x86-64-v4")

_BINARY = "package.mdcg-kernels"  # same as in csrc/engine/kernels/kernel_finder.cpp
# Compute capability of the oldest supported devices.
_OLDEST = 80
_OLDEST_GFX = 0x900


def check_targets(targets: Sequence[str]) -> None:
    """Refuse targets that are unknown or that the installed compiler does not compile for."""
    from ..runtime.hiprtc import hiprtc_for
    from ..runtime.nvrtc import nvrtc_for

    for target in targets:
        if re.fullmatch(r"gfx[0-9a-f]{3,4}", target):
            if int(target[3:], 16) < _OLDEST_GFX:
                raise UnsupportedProblemError(
                    f"target {target}: kernels need gfx900 or later, expected gfx90a and the like"
                )
            hiprtc_for(target)
            continue
        if re.fullmatch(r"sm_\d{2,3}", target):
            if int(target[3:]) < _OLDEST:
                raise UnsupportedProblemError(
                    f"target {target}: kernels need devices of compute capability 8.0 or later, "
                    "expected sm_80, sm_90, sm_100 and the like"
                )
            nvrtc_for(target)
        elif target not in TARGETS and target != _core.host_target("native"):
            raise UnsupportedProblemError(
                f"target {target} is unknown, expected any of {', '.join(TARGETS)}, or "
                "sm_80, sm_90, sm_100 and the like for CUDA devices, gfx90a and the like for "
                "AMD's"
            )


def cache_kernels(path: Path, target: str, *, again: bool = False) -> Path:
    """Return the cached file with a package's kernels for one target, which is made if needed.

    The target is one of :data:`TARGETS`, or ``sm_NN`` or ``gfxNNN`` for devices, which need not
    exist here.
    With `again`, cached kernels are compiled again.
    """
    problem = _read_problem(path)
    name = _label(target)
    cache = _core.KernelCache(name, _BINARY)
    key = _core.kernel_key(problem)
    if again:
        cache.discard(key)
    found = cache.find(key)
    if found is None:
        if reason := why_not_kept():
            raise OutputError(reason)

        def build(folder: Path) -> None:
            data = compile_kernels(path, [target], again=again)
            (folder / _BINARY).write_bytes(data)

        found = cache.make(key, build)
    return Path(found.path)


def device_refusal(path: Path) -> str:
    """Return why no CUDA device can run a package, or an empty string; nothing is compiled."""
    from .cuda_kernels import cuda_passes

    try:
        content = json.loads(_read_problem(path))
        passes, _ = cuda_passes(content["layers"], content["tensors"])
        _engine_texts(path, f"sm_{_OLDEST}", passes)
    except UnsupportedProblemError as refusal:
        return str(refusal).removeprefix(f"{path}: ")
    return ""


def _label(target: str) -> str:
    """Return a target's name in files and in the cache; "native" becomes this kind of CPU."""
    return target if target.startswith(("sm_", "gfx", "native-")) else _core.host_target(target)


def _read_problem(path: Path) -> str:
    try:
        return _core.kernel_problem(str(path))
    except _core.EngineError as error:
        refused = UnsupportedProblemError if error.kind == _UNSUPPORTED else PackageError
        raise refused(str(error)) from None


def compile_kernels(path: Path, targets: Sequence[str], *, again: bool = False) -> bytes:
    """Return the contents of a file with the kernels of a package; see :func:`cache_kernels`."""
    from .cuda_kernels import cuda_passes
    from .file import encode

    check_targets(targets)
    problem = _read_problem(path)
    content = json.loads(problem)
    tensors: dict[str, NDArray[Any]] = {}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "mdcg_version": __version__,
        "generator": _core.kernel_generator(),
        "problem": hashlib.sha256(problem.encode()).hexdigest(),
        "host": {},
        "devices": {},
        "passes": [],
    }
    vendors = ("sm_", "gfx")
    for target in targets:
        if not target.startswith(vendors):
            manifest["host"][_label(target)] = _compile_host(content, target, tensors, again)
    for vendor in vendors:
        devices = [target for target in targets if target.startswith(vendor)]
        if not devices:
            continue
        layers, names = content["layers"], content["tensors"]
        passes, programs = cuda_passes(layers, names, amd=vendor == "gfx")
        manifest["passes"] += passes
        for target in devices:
            texts = programs | _engine_texts(path, target, passes)
            manifest["devices"][target] = _compile_device(texts, target, tensors, again)
    return encode(manifest, tensors, KEY)


def _compile_host(
    content: dict[str, Any], target: str, tensors: dict[str, NDArray[Any]], again: bool
) -> list[str | None]:
    """Add the libraries of layers to the tensors; return the name of each layer's tensor."""
    from ..runtime.compiler import build_host_kernels
    from .cuda_kernels import host_source

    sources = [host_source(layer) for layer in content["layers"]]
    option = "-march=" if platform.machine() in ("x86_64", "AMD64") else "-mcpu="
    label = _label(target)
    level = "native" if label == _core.host_target("native") else target
    texts = list(dict.fromkeys(source for source in sources if source is not None))
    built = build_host_kernels(texts, target=label, flags=(option + level,), again=again)
    names = {text: f"{label}.{number}" for number, text in enumerate(texts)}
    for text, library in zip(texts, built, strict=True):
        tensors[names[text]] = np.frombuffer(library, dtype=np.uint8)
    return [None if source is None else names[source] for source in sources]


def _engine_texts(path: Path, target: str, passes: list[dict[str, Any]]) -> dict[str, str]:
    """Return the texts of the engine's own kernels by key."""
    try:
        found = _core.cuda_kernel_sources(str(path), target, json.dumps(passes))
    except _core.EngineError as refusal:
        raise UnsupportedProblemError(f"target {target}: {refusal}") from None
    return {key: text for key, _, text in found}


def _compile_device(
    texts: dict[str, str], target: str, tensors: dict[str, NDArray[Any]], again: bool
) -> dict[str, Any]:
    """Add machine code to the tensors; return the manifest's entry of the target."""
    from ..runtime.cuda_build import discard_cuda_kernel, load_cuda_kernels
    from ..runtime.hiprtc import find_hiprtc
    from ..runtime.nvrtc import find_nvrtc

    for text in texts.values() if again else ():
        discard_cuda_kernel(text, target)
    built = load_cuda_kernels(list(texts.values()), target)
    code = {key: f"{target}.{key}" for key in texts}
    for key, binary in zip(texts, built, strict=True):
        tensors[code[key]] = np.frombuffer(binary, dtype=np.uint8)
    hip = target.startswith("gfx")
    version = (find_hiprtc() if hip else find_nvrtc())[0].version
    return {"hiprtc" if hip else "nvrtc": ".".join(map(str, version)), "code": code}
