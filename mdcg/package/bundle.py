"""Compiled kernels in a package, for machines without a compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

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
    for kernel in package.manifest["kernels"]:
        source = package.text(kernel["source"])
        found: list[dict[str, Any]] = []
        for target in targets:
            try:
                binary = _core.compile_kernel(source, target)
            except RuntimeError as error:
                name = kernel["name"]
                raise KernelCompileError(f"kernel {name} for {target}: {error}") from error
            tensor = f"kernels.{kernel['name']}.{target}"
            package.tensors[tensor] = np.frombuffer(binary, dtype=np.uint8)
            digest = hashlib.sha256(binary).hexdigest()
            found.append({"target": target, "tensor": tensor, "sha256": digest})
        kernel["binaries"] = found
