"""Compiled kernels in a package, for machines without a compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import KernelCompileError, UnsupportedProblemError
from .package import Package

__all__ = ["TARGETS", "add_binaries", "check_targets"]

#: What kernels can be compiled for; "native" is the processor of this machine.
TARGETS = ("native", "x86-64-v2", "x86-64-v3", "x86-64-v4")


def check_targets(targets: Sequence[str]) -> None:
    """See that there is a compiler for each target.

    Raises
    ------
    UnsupportedProblemError
        A target is unknown.
    """
    for target in targets:
        if target.startswith("sm_"):
            raise UnsupportedProblemError(
                f"--bundle {target}: packages of this version run on the CPU, expected any of "
                f"{', '.join(TARGETS)}"
            )
        if target not in TARGETS:
            raise UnsupportedProblemError(
                f"--bundle {target}: no such target, expected any of {', '.join(TARGETS)}"
            )


def add_binaries(package: Package, targets: Sequence[str]) -> None:
    """Compile the kernels of a package and store the libraries in it.

    Parameters
    ----------
    package : Package
        Changed in place.
    targets : sequence of str
        Any of :data:`TARGETS`.

    Raises
    ------
    KernelCompileError
        There is no compiler, or it rejected a kernel.
    """
    from .. import _core

    check_targets(targets)
    kernels = package.manifest["kernels"]
    sources = [package.text(kernel["source"]) for kernel in kernels]
    for kernel in kernels:
        kernel["binaries"] = []
    for target in targets:
        # of "native" the processor is part of the name: others pass over it
        label = _core.host_target(target)
        built = _core.build_kernels(sources, target)  # several compilers at a time
        for kernel, (path, error, _, _) in zip(kernels, built, strict=True):
            if error:
                raise KernelCompileError(f"kernel {kernel['name']} for {target}: {error}")
            binary = Path(path).read_bytes()
            tensor = f"kernels.{kernel['name']}.{label}"
            package.tensors[tensor] = np.frombuffer(binary, dtype=np.uint8)
            digest = hashlib.sha256(binary).hexdigest()
            kernel["binaries"].append({"target": label, "tensor": tensor, "sha256": digest})
