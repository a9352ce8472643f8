"""Files of mdcg-patch: their names, and why an output cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

SUFFIXES = (".model", ".pt")
PACKAGE = ".nequip.zip"
CONVERTED = ".mdcg"
_LONGEST_NAME = 255  # bytes, on all usual file systems of Linux


def report_path(output: Path) -> Path:
    """Return where the report of an output file goes."""
    return output.with_name(output.name + ".report.json")


def kernels_path(output: Path) -> Path:
    """Return where compiled kernels of a package go."""
    return output.with_suffix(".mdcg-kernels")


def output_problems(source: Path, output: Path, *, force: bool) -> list[str]:
    """Return why an output cannot be written or would overwrite something, in sentences."""
    longest = report_path(output).name
    if len(os.fsencode(longest)) > _LONGEST_NAME:
        return [
            f"the name {longest} of the report has {len(os.fsencode(longest))} bytes, expected at "
            f"most {_LONGEST_NAME}: choose a shorter name for the output"
        ]
    if output.suffix in (".ckpt", ".pth", ".pt2"):
        return [
            f"{output}: mdcg-patch writes .mdcg, .model or .pt files, and .nequip.zip from "
            "packages; nequip-train and nequip-compile take the modifier enable_mdcg instead"
        ]
    if output.suffix not in (*SUFFIXES, CONVERTED) and not output.name.endswith(PACKAGE):
        return [
            f"{output} has the suffix {output.suffix!r}, expected .mdcg, .model or .pt "
            "(.nequip.zip if the input is a NequIP package)"
        ]
    if output.is_dir():
        return [f"{output} is a folder, expected a file name"]
    if not output.parent.is_dir():
        return [f"the folder {output.parent} does not exist: make it first"]
    found = []
    for target in (output, report_path(output)):
        if not os.path.lexists(target):
            continue
        if target.exists() and target.samefile(source):
            found.append(f"{target} is the input file, which is never overwritten: name another")
        elif not force:
            found.append(f"{target} exists already: name another output or use --force")
        elif target.exists() and not target.is_file():  # a device, a pipe
            found.append(f"{target} is not a regular file: name another output")
    return found


def package_problems(source: Path, output: Path, *, package: bool) -> list[str]:
    """Return why a NequIP package and another kind of file cannot be converted into each other."""
    if package and not output.name.endswith(PACKAGE):
        return [
            f"{source} is a NequIP package, whose classes are inside it: name the output "
            "*.nequip.zip"
        ]
    if not package and output.name.endswith(PACKAGE):
        return [
            f"{source} is not a NequIP package: name the output *.pt, or make a package of it with "
            "nequip-package first"
        ]
    return []
