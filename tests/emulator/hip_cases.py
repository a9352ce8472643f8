"""Plugin of pytest that runs cases of CUDA devices on AMD's: ``"cuda:1"`` becomes ``"hip:1"``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any

import pytest

from mdcg import _core

# Names of devices, except in the list of all that a message gives.
_NAME = re.compile(r"(?<!'cpu', ')\bcuda(?=:\d|:[\"'{]|[\"'])(?!', 'cuda:N')(?!:N)")
_OTHERS = {
    "MDCG_NVRTC_LIB": "MDCG_HIPRTC_LIB",
    "the NVRTC library": "the hiprtc library",
    "cuGraphInstantiate": "hipGraphInstantiate",
}


class _Loader(SourceFileLoader):
    def get_data(self, path: str) -> bytes:
        text = super().get_data(path).decode()
        for name, other in _OTHERS.items():
            text = text.replace(name, other)
        return _NAME.sub("hip", text).encode()

    def path_stats(self, path: str) -> dict[str, object]:  # type: ignore[override]
        raise OSError  # no compiled file is read or written


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("tests.engine.cuda_"):
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is None or found.origin is None:
            return None
        return spec_from_file_location(name, found.origin, loader=_Loader(name, found.origin))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases of bundled kernels, which are NVIDIA's alone."""
    left_out = [item for item in items if item.path.name == "cuda_bundle_cases.py"]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def pytest_configure() -> None:
    """Come before the finder of pytest, which rewrites assertions; refuse models on CUDA devices.

    A name that was not replaced would otherwise pass without AMD's kernels.
    """
    sys.meta_path.insert(0, _Finder())
    open_model = _core.Model.__init__

    def opened(self: _core.Model, *arguments: Any, device: str = "cpu", **options: Any) -> None:
        assert not device.startswith("cuda"), f"a case names device {device}"
        open_model(self, *arguments, device=device, **options)

    _core.Model.__init__ = opened  # type: ignore[method-assign]
