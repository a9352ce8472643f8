"""Compiled kernels in a package, for machines without a compiler."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import KernelCompileError, UnsupportedProblemError
from ..runtime.nvrtc import find_nvrtc
from .package import Package

__all__ = ["TARGETS", "add_binaries", "check_targets"]

#: What kernels of processors can be compiled for; "native" is the processor of this machine.
TARGETS = ("native", "x86-64-v2", "x86-64-v3", "x86-64-v4")

Tensors = dict[str, npt.NDArray[Any]]

# The oldest devices that kernels are written for.
_OLDEST = 80


def check_targets(targets: Sequence[str]) -> None:
    """See that there is a compiler for each target.

    Raises
    ------
    UnsupportedProblemError
        A target is unknown.
    KernelCompileError
        There is no NVRTC for devices (``sm_NN``), or it does not know one.
    """
    for target in targets:
        if re.fullmatch(r"sm_\d{2,3}", target):
            _check_device(target)
        elif target not in TARGETS:
            raise UnsupportedProblemError(
                f"--bundle {target}: no such target, expected any of {', '.join(TARGETS)}, or "
                "sm_80, sm_90, sm_100 and the like for CUDA devices"
            )


def _check_device(target: str) -> None:
    number = int(target[3:])
    if number < _OLDEST:
        raise UnsupportedProblemError(
            f"--bundle {target}: kernels need devices of compute capability 8.0 or later, expected "
            "sm_80, sm_90, sm_100 and the like"
        )
    nvrtc, path = find_nvrtc()
    if number not in nvrtc.architectures:
        known = ", ".join(f"sm_{n}" for n in nvrtc.architectures if n >= _OLDEST)
        raise KernelCompileError(
            f"--bundle {target}: NVRTC {'.'.join(map(str, nvrtc.version))} ({path}) does not "
            f"compile for it, expected any of {known}"
        )


def add_binaries(package: Package, targets: Sequence[str]) -> None:
    """Compile the kernels of a package and store the machine code in it.

    Parameters
    ----------
    package : Package
        Changed in place; what it had is left out.
    targets : sequence of str
        Any of :data:`TARGETS`, and ``sm_NN`` for CUDA devices, which need not be there: their code
        serves later devices of the same generation, too.

    Raises
    ------
    UnsupportedProblemError
        A target is unknown, or the package has no kernels for devices.
    KernelCompileError
        There is no compiler, or it rejected a kernel.
    """
    check_targets(targets)
    made: Tensors = {}
    hosts = [_compile_host(package, target, made) for target in targets if target in TARGETS]
    devices = [target for target in targets if target not in TARGETS]
    entries = _compile_devices(package, devices, made) if devices else []
    # nothing is raised from here on: a package keeps what it had, or gets all that is asked for
    for kernel in package.manifest["kernels"]:
        for binary in kernel["binaries"]:
            del package.tensors[binary["tensor"]]
        kernel["binaries"] = [found[kernel["name"]] for found in hosts]
    for binary in package.manifest.pop("cuda_binaries", []):
        package.tensors.pop(binary["tensor"], None)
    if devices:
        package.manifest["cuda_binaries"] = entries
    package.tensors.update(made)


def _compile_host(package: Package, target: str, made: Tensors) -> dict[str, dict[str, str]]:
    """Add machine code to `made`; return the entry of each kernel."""
    from .. import _core

    kernels = package.manifest["kernels"]
    sources = [package.text(kernel["source"]) for kernel in kernels]
    # of "native" the processor is part of the name: others pass over it
    label = _core.host_target(target)
    built = _core.build_kernels(sources, target)  # several compilers at a time
    found = {}
    for kernel, (path, error, _, _) in zip(kernels, built, strict=True):
        if error:
            raise KernelCompileError(f"kernel {kernel['name']} for {target}: {error}")
        tensor = f"kernels.{kernel['name']}.{label}"
        digest = _store(made, tensor, Path(path).read_bytes())
        found[kernel["name"]] = {"target": label, "tensor": tensor, "sha256": digest}
    return found


def _compile_devices(
    package: Package, targets: Sequence[str], made: Tensors
) -> list[dict[str, str]]:
    """Add machine code to `made`; return its entries."""
    from .. import _core

    _core.set_nvrtc_path(find_nvrtc()[1])
    with tempfile.TemporaryDirectory(prefix="mdcg-") as folder:
        # the engine says which texts it runs: those of the package, and its own
        path = Path(folder) / "package.mdcg"
        package.save(path)
        try:
            texts = {target: _core.cuda_texts(str(path), target) for target in targets}
        except _core.EngineError as refusal:
            raise UnsupportedProblemError(
                f"--bundle {', '.join(targets)}: {str(refusal).removeprefix(f'{path}: ')}"
            ) from None
    entries = []
    for target, found in texts.items():
        built = _core.build_cuda_kernels([(text, options) for _, _, text, options in found], target)
        for (key, name, _, _), (cubin, error, _, _) in zip(found, built, strict=True):
            if error:
                raise KernelCompileError(f"kernel {name} for {target}: {error}")
            tensor = f"cuda_binaries.{target}.{key}"
            digest = _store(made, tensor, cubin)
            entries.append(
                {"target": target, "key": key, "name": name, "tensor": tensor, "sha256": digest}
            )
    return entries


def _store(made: Tensors, tensor: str, binary: bytes) -> str:
    made[tensor] = np.frombuffer(binary, dtype=np.uint8)
    return hashlib.sha256(binary).hexdigest()
