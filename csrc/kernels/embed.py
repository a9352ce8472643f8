"""Print C++ that holds the text of every device program: ``embed.py > kernel_sources.cpp``.

A program is a ``.cuh`` file of this folder that no other one includes, or any of the folders in it:
those are templates that mdcg/codegen instantiates.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
INCLUDE = re.compile(r'^#include "kernels/(.+)"\n', re.MULTILINE)


def kernel_source(name: str, seen: set[str] | None = None) -> str:
    """Return the text of a file in which every file that it includes stands once."""
    seen = set() if seen is None else seen
    if name in seen:
        return ""
    seen.add(name)
    text = FOLDER.joinpath(name).read_text(encoding="utf-8").replace("#pragma once\n", "")
    return INCLUDE.sub(lambda found: kernel_source(found[1], seen), text)


def main() -> None:
    """Print a definition of ``mdcg::kernel_source``."""
    files = sorted(FOLDER.rglob("*.cuh"))
    included = {name for file in files for name in INCLUDE.findall(file.read_text("utf-8"))}
    print('#include "engine/cuda/kernels.hpp"\n\n#include <stdexcept>\n')
    print("namespace mdcg {\n\nconst char* kernel_source(const std::string& name) {")
    names = (file.relative_to(FOLDER).as_posix() for file in files)
    for name in (name for name in names if name not in included or "/" in name):
        print(f'    if (name == "{name}")\n        return R"CUDA({kernel_source(name)})CUDA";')
    print('    throw std::logic_error("there is no device program " + name);\n}\n')
    print("}  // namespace mdcg")


if __name__ == "__main__":
    main()
