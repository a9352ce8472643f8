"""Prints structs of constants and tables, which instantiate kernel templates of csrc/kernels.

A program is the title, definitions that the file needs, the file with all that it includes, structs
for its templates, and kernels that instantiate them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ... import _core

__all__ = ["Table", "argument_names", "constants", "kernel_file"]

# Most characters of a printed line of a table.
_WIDTH = 100


@dataclass(frozen=True)
class Table:
    """An array of constants; `type` is the C type of a row, a sequence lists a row's fields."""

    type: str
    rows: Sequence[object]


def kernel_file(name: str) -> str:
    """Return a file of csrc/kernels, such as conv/table_forward.cuh, with all that it includes."""
    return _core.kernel_source(name)


def argument_names(source: str, *structs: str) -> tuple[str, ...]:
    """Return the fields of structs in a text, in order: the names of a kernel's arguments."""
    names: list[str] = []
    for struct in structs:
        body = re.search(
            rf"^struct {struct}\b[^;{{]*\{{\n(.*?)^\}};", source, re.DOTALL | re.MULTILINE
        )
        if body is None:
            raise ValueError(f"the text has no struct {struct}")
        names += re.findall(r"(\w+);", re.sub(r"//.*", "", body[1]))
    return tuple(names)


def constants(name: str, comment: str, members: dict[str, int | Table]) -> str:
    """Print a struct of constants: integers, truth values and tables, by their names."""
    lines = [f"struct {name} {{  // {comment}"]
    for member, value in members.items():
        if isinstance(value, Table):
            # arrays cannot be empty
            rows = [_text(row) for row in value.rows] or ["{}"]
            lines.append(f"    static constexpr {value.type} {member}[] = {{")
            lines += _wrapped(rows)
            lines.append("    };")
        else:
            kind = "bool" if isinstance(value, bool) else "int"
            lines.append(f"    static constexpr {kind} {member} = {_text(value)};")
    return "\n".join([*lines, "};"])


def _text(value: object) -> str:
    """Print a constant exactly."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{{{', '.join(map(_text, value))}}}"
    return str(value)


def _wrapped(items: Sequence[str]) -> list[str]:
    lines = [""]
    for item in items:
        if len(lines[-1]) + len(item) + 2 > _WIDTH - 8:
            lines.append("")
        lines[-1] += f"{item}, "
    return [f"        {line.rstrip()}" for line in lines]
