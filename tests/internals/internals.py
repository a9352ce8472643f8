"""Parts of the engine that no public interface reaches, bound for tests alone.

The module ``core`` is compiled when it is first imported, against the sources of this clone and the
installed ``libmdcg.so``, which must be built from them.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import mdcg
from mdcg import _core

from ..emulator.emulator import built

_HERE = Path(__file__).parent
_CSRC = _HERE.parents[1] / "csrc"
_FLAGS = ("-std=c++17", "-O0", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden")


def _build(folder: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("the engine's internals need g++", allow_module_level=True)
    includes = [f"-I{_CSRC}", f"-I{_CSRC}/include", f"-I{sysconfig.get_path('include')}"]
    for name in ("pybind11", "nlohmann_json"):
        includes += ["-isystem", pytest.importorskip(name).get_include()]

    # compiled as one file, because headers take most of the time
    text = "".join(f'#include "{path}"\n' for path in sorted(_HERE.glob("*.cpp")))
    home = Path(_core.__file__).parent
    done = subprocess.run(
        [
            *(compiler, *_FLAGS, *includes, "-shared", "-x", "c++", "-", "-x", "none"),
            *(str(home / "libmdcg.so"), f"-Wl,-rpath,{home}"),
            *("-o", str(folder / "mdcg_internals.so")),
        ],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _load() -> Any:
    library = Path(_core.__file__).parent / "libmdcg.so"
    headers = [path for path in _CSRC.rglob("*") if path.suffix in (".hpp", ".h", ".cuh")]
    headers += _HERE.glob("*.hpp")
    sources = [library, *sorted(headers), *sorted(_HERE.glob("*.cpp"))]
    what = (*_FLAGS, mdcg.__version__, str(library), sysconfig.get_config_var("SOABI"))
    path = built("internals", what, sources, _build) / "mdcg_internals.so"
    spec: Any = importlib.util.spec_from_file_location("mdcg_internals", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


core = _load()


@contextmanager
def _limit(change: Callable[[int], int], number: int) -> Iterator[None]:
    before = change(number)
    try:
        yield
    finally:
        change(before)


def small_up_to(edges: int) -> AbstractContextManager[None]:
    """Set the number of edges above which lists made in this context count as large on devices."""
    return _limit(core.set_most_small_edges, edges)


def ranges_of(edges: int) -> AbstractContextManager[None]:
    """Set the number of edges above which models first evaluated in this context divide lists."""
    return _limit(core.set_most_range_edges, edges)


def filling_from(receivers: int) -> AbstractContextManager[None]:
    """Set the number of receivers below which, in this context, warps share edges of a receiver."""
    return _limit(core.set_fewest_filling, receivers)


def sums_alone_up_to(items: int) -> AbstractContextManager[None]:
    """Set the number of items above which sums and sorts of this context take several launches."""
    return _limit(core.set_most_alone, items)
