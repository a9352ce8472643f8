"""The layers of test_node_layers.py on a CUDA device against the same on the processor.

No file of tests by its name: test_cuda_text.py runs it in a process of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import test_node_layers as layers
from .cuda_cases import assert_close, both
from .programs import Array, Program, run
from .test_node_layers import (  # noqa: F401
    test_contraction,
    test_energies_add_up_in_double,
    test_gate,
    test_linear,
    test_pointwise,
    test_sizes,
)


def check(program: Program, path: Path, g: dict[str, Array]) -> None:
    cpu, cuda = both(program.package(), path)
    for wanted in ({"forces": False}, {"virial": True}):
        want: dict[str, Any] = run(cpu, g, **wanted)
        assert_close(run(cuda, g, **wanted), want, program.dtype)


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "check", check)
