"""Generated text of one small kernel per generator, to be read.

After a change of a generator that is meant, write the files again and read the difference::

    MDCG_WRITE_GOLDEN=1 python -m pytest tests/core/test_golden.py; git diff tests/core/golden

That kernels are right is shown by numbers elsewhere; these files show what they look like.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import mdcg
from mdcg.codegen import KernelSpec, emit_cuda, emit_host
from mdcg.codegen.contraction.cuda import emit_contraction_cuda
from mdcg.codegen.contraction.host import emit_contraction_host
from mdcg.codegen.contraction.program import ContractionSpec
from mdcg.plan import CudaDevice, HostDevice, plan_cuda, plan_host
from mdcg.plan.contraction import plan_contraction_cuda, plan_contraction_host
from mdcg.problem import ConvProblem, Polynomial, SymmetricContractionProblem

GOLDEN = Path(__file__).parent / "golden"
HOST, DEVICE = HostDevice("x86-64-v3", l2_bytes=1024 * 1024), CudaDevice(90)
# the gradient of a node's vector along an edge; a matrix that turns scalars into scalars
CONV = ConvProblem.build("8x1o", "1o", "8x0e", [(0, 0, 0)])
UVW = ConvProblem.build("3x0e", "1x0e", "5x0e", [(0, 0, 0, "uvw")], dtype="float64")
# the square of a vector
DOT = SymmetricContractionProblem.build(
    "8x1o", "8x0e", [Polynomial(0, (tuple((1.0, (i, i)) for i in range(3)),))]
)
FORWARD, PRODUCT = KernelSpec("forward", True), ContractionSpec("forward", True)
CASES: dict[str, Callable[[], str]] = {
    "conv.cpp": lambda: emit_host(CONV, plan_host(CONV, HOST), FORWARD).source,
    "conv_uvw.cu": lambda: emit_cuda(UVW, plan_cuda(UVW, DEVICE), FORWARD).source,
    "contraction.cpp": lambda: (
        emit_contraction_host(DOT, plan_contraction_host(DOT, HOST), PRODUCT).source
    ),
    "contraction.cu": lambda: (
        emit_contraction_cuda(DOT, plan_contraction_cuda(DOT, DEVICE), PRODUCT).source
    ),
}


def without_fixed_files(text: str) -> str:
    """Replace what is the same file in every kernel by its name."""
    folder = Path(mdcg.__file__).parent / "codegen"
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".hpp", ".cuh")):
        text = text.replace(path.read_text(), f"// ({path.name})\n")
    return text.replace(mdcg.__version__, "VERSION")


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    text = without_fixed_files(CASES[name]())
    path = GOLDEN / name
    if os.environ.get("MDCG_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.is_file(), "no golden file: see the top of this file"
    assert text == path.read_text(), "the generated text changed: see the top of this file"
