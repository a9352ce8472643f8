"""Reads files of compiled kernels, changes them, and writes them again."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from mdcg import _core
from mdcg._version import __version__
from mdcg.package.file import encode
from mdcg.package.kernel_file import KEY, cache_kernels

from ..signing import signed, split

Change = Callable[[dict[str, Any], dict[str, Any]], object]


def cached(root: Path) -> Path:
    """Return the only file of a cache."""
    (found,) = (root / __version__).glob("*/*/package.mdcg-kernels")
    return found


def manifest_of(path: Path) -> dict[str, Any]:
    header, _ = split(path.read_bytes())
    found: dict[str, Any] = json.loads(header["__metadata__"][KEY])
    return found


def altered(path: Path, change: Change) -> bytes:
    """Return the contents after a change of manifest and tensors, with a new digest."""
    tensors = load(path.read_bytes())
    manifest = manifest_of(path)
    change(manifest, tensors)
    return encode(manifest, tensors, KEY)


def with_code(code: bytes) -> Change:
    """Return a change that replaces all tensors by other code."""

    def change(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in tensors:
            tensors[name] = np.frombuffer(code, np.uint8)

    return change


def plant(source: Path, target: Path, mark: Path) -> None:
    """Write a package of format 1 with code in all possible places, which would write `mark`.

    The layers name the kernels, and every digest fits. Beside the package lies a file of kernels
    with the same code.
    """
    text = (
        "#include <stdio.h>\n__attribute__((constructor)) static void planted() "
        f'{{ fclose(fopen("{mark}", "w")); }}\n'
    ).encode()
    (target.parent / "planted.cpp").write_bytes(text)
    library = target.parent / "planted.so"
    command = ["c++", "-shared", "-fPIC", str(target.parent / "planted.cpp"), "-o", str(library)]
    subprocess.run(command, check=True)
    code = library.read_bytes()
    digest = hashlib.sha256(code).hexdigest()
    data = source.read_bytes()
    manifest = json.loads(split(data)[0]["__metadata__"]["mdcg"])
    assert manifest["format"] == 1
    tensors = load(data)
    tensors["text"], tensors["code"] = (np.frombuffer(each, np.uint8) for each in (text, code))
    for kernel in manifest["kernels"]:
        binary = {"tensor": "code", "sha256": digest}
        targets = (_core.host_target("native"), "x86-64-v2", _core.instruction_set_level())
        kernel.update(source="text", binaries=[{"target": each, **binary} for each in targets])
    entry = {"name": "planted", "program": 0, "threads": 32, "shared_bytes": 0, "rows": 1}
    manifest["cuda_kernels"] = [
        {
            "layer": layer["name"],
            "name": "planted",
            "pass": kind,
            "target": "sm_80",
            "programs": ["text"],
            "entries": [entry],
            "arguments": [],
            "zeroed": [],
            "run": 1,
            "widths": {},
        }
        for layer in manifest["layers"]
        for kind in ("forward", "backward", "table_forward", "table_backward")
    ]
    manifest["cuda_binaries"] = [
        {"target": f"sm_{n}", "key": "0" * 32, "tensor": "code", "sha256": digest} for n in (80, 90)
    ]
    made = save(tensors, metadata={"mdcg": json.dumps(manifest)})
    target.write_bytes(signed(made))
    kernels = target.with_suffix(".mdcg-kernels")
    kernels.write_bytes(altered(cache_kernels(target, "native"), with_code(code)))
