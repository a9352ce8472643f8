"""Problems taken from e3nn modules: what is read from them, and that results are those of e3nn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mdcg import UnsupportedProblemError
from mdcg.ops import ConvTensorProduct, TensorProduct
from mdcg.ops.reference import tensor_product_reference
from mdcg.patch._frameworks import default_dtype
from mdcg.problem import ConvProblem, wigner_3j

from .helpers import (
    assert_close,
    compile_ahead,
    derivatives,
    e3nn_o3,
    e3nn_version,
    random_graph,
    random_operands,
    usual_specs,
)

pytestmark = pytest.mark.compiler

MODULES: dict[str, dict[str, Any]] = {
    # mace-medium, second layer, narrow
    "uvu": {
        "irreps": ("5x0e+5x1o", "1x0e+1x1o+1x2e", "5x0e+5x0e+5x1o+5x1o+5x1o+5x2e"),
        "paths": [(0, 0, 0), (1, 1, 1), (0, 1, 2), (1, 0, 3), (1, 2, 4), (0, 2, 5)],
    },
    # an odd sum of degrees: e3nn 0.4 and 0.5 differ in sign
    "uvu odd": {
        "irreps": ("4x1e+4x2e", "1x1e+1x2e", "4x2e+4x1e+4x2e+4x1e"),
        "paths": [(0, 1, 0), (0, 0, 1), (1, 0, 2), (1, 1, 3)],
    },
    "uvw": {
        "irreps": ("5x0e+3x1o", "2x0e+1x1o", "4x0e+6x1o"),
        "paths": [(0, 0, 0, "uvw"), (1, 1, 0, "uvw"), (0, 1, 1, "uvw"), (1, 0, 1, "uvw")],
    },
    "mixed, weightless": {
        "irreps": ("5x0e+3x1o", "2x0e+3x1o", "5x0e+6x1o+3x1o+3x1e"),
        "paths": [
            (0, 0, 0, "uvu"),
            (0, 1, 1, "uvw"),
            (1, 0, 2, "uvu", False),
            (1, 1, 3, "uvu", True, 0.4),
            (1, 1, 0, "uvw", True, 2.5),
        ],
    },
    "shared": {
        "irreps": ("5x0e+5x1o", "1x0e+1x1o", "5x0e+5x1o"),
        "paths": [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)],
        "options": {"shared_weights": True, "internal_weights": False},
    },
    "no weights": {
        "irreps": ("3x1o", "1x1o+2x2e", "3x0e+3x1o"),
        "paths": [(0, 0, 0, "uvu", False), (0, 1, 1, "uvu", False)],
    },
    "norm, path": {
        "irreps": ("5x0e+3x1o", "2x0e+1x1o", "5x0e+6x1o"),
        "paths": [(0, 0, 0, "uvu"), (1, 1, 0, "uvw"), (0, 1, 1, "uvw"), (1, 0, 1, "uvw")],
        "options": {"irrep_normalization": "norm", "path_normalization": "path"},
    },
}


def e3nn_module(name: str, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    """Build an ``o3.TensorProduct`` of MODULES."""
    spec = MODULES[name]
    defaults = ("uvu", True, 1.0)
    paths = [(*path, *defaults[len(path) - 3 :]) for path in spec["paths"]]
    options = {"shared_weights": False, "internal_weights": False} | spec.get("options", {})
    with default_dtype(dtype):
        module: torch.nn.Module = e3nn_o3().TensorProduct(*spec["irreps"], paths, **options)
    return module


def e3nn_conv(
    module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor | None, graph: Any
) -> torch.Tensor:
    """Gather, e3nn tensor product, sum."""
    messages = module(x[graph.sender], y, w)
    return x.new_zeros(graph.n_receivers, messages.shape[1]).index_add(0, graph.receiver, messages)


@pytest.mark.parametrize("name", MODULES)
def test_description(name: str) -> None:
    module, spec = e3nn_module(name), MODULES[name]
    problem = ConvProblem.from_e3nn(module)
    for ours, theirs in (
        (problem.irreps_in1, module.irreps_in1),
        (problem.irreps_in2, module.irreps_in2),
        (problem.irreps_out, module.irreps_out),
    ):
        assert [(b.mul, b.ir.l, b.ir.p) for b in ours] == [(m, ir.l, ir.p) for m, ir in theirs]
    assert problem.weight_numel == module.weight_numel
    assert len(problem.paths) == len(spec["paths"])
    assert problem.shared_weights == module.shared_weights
    assert problem.dtype == "float64"
    assert problem.layout == "mul_ir"
    assert problem.rounded == ()
    assert [p.path_weight for p in problem.paths] == [i.path_weight for i in module.instructions]


@pytest.mark.parametrize("name", MODULES)
def test_reference_is_e3nn(name: str) -> None:
    module = e3nn_module(name)
    problem = ConvProblem.from_e3nn(module)
    x, y, w = random_operands(problem, 9, 9, seed=2)
    assert_close(tensor_product_reference(problem, x, y, w), module(x, y, w), 1e-13, name)


@pytest.mark.parametrize("name", ["uvu", "uvw", "mixed, weightless"])
def test_float32_error_is_that_of_e3nn(name: str) -> None:
    """Errors in float32 are at most three times those of e3nn."""
    exact, single = e3nn_module(name), e3nn_module(name, torch.float32)
    problem = ConvProblem.from_e3nn(single)
    assert problem.dtype == "float32"
    graph = random_graph(30, 30, 900, seed=6)
    compile_ahead([(problem, usual_specs(True)[:2])])
    operands = random_operands(problem, graph.n_senders, graph.n_edges, seed=3)
    results = {}
    for kind in ("ours", "e3nn", "exact"):
        dtype = torch.float64 if kind == "exact" else torch.float32
        x, y, w = (t.to(dtype, copy=True).requires_grad_() for t in operands if t is not None)
        if kind == "ours":
            out = ConvTensorProduct(problem)(x, y, w, graph.sender, graph.receiver)
        else:
            out = e3nn_conv(exact if kind == "exact" else single, x, y, w, graph)
        results[kind] = derivatives(out, [x, y, w], order=1)
    for key, exact_value in results["exact"].items():
        scale = float(exact_value.detach().abs().max())
        ours, theirs = (
            float((results[k][key].double() - exact_value).detach().abs().max()) / scale
            for k in ("ours", "e3nn")
        )
        assert ours <= 3 * theirs + 1e-7, f"{name}, {key}: {ours:.1e}, e3nn {theirs:.1e}"


def test_constants_rounded_by_the_module_are_kept() -> None:
    """3j symbols that a float32 model has rounded stay rounded when it runs in float64."""
    module = e3nn_module("uvu", torch.float32).double()
    problem = ConvProblem.from_e3nn(module)
    assert problem.dtype == "float64"
    assert (1, 2, 1) in problem.rounded
    x, y, w = random_operands(problem, 9, 9, seed=2)
    want = module(x, y, w)
    assert_close(tensor_product_reference(problem, x, y, w), want, 1e-13)
    unrounded = ConvProblem.from_e3nn(e3nn_module("uvu"))
    error = (tensor_product_reference(unrounded, x, y, w) - want).abs().max() / want.abs().max()
    assert 1e-10 < float(error) < 1e-6, "the test would not notice"


def test_signs_are_those_of_the_module() -> None:
    module = e3nn_module("uvu odd")
    # even permutations of (1, 2, 2); (1, 1, 1) is the same in all versions
    old = {(1, 2, 2), (2, 1, 2), (2, 2, 1)} if e3nn_version() < (0, 5) else set()
    assert set(ConvProblem.from_e3nn(module).flipped) == old
    for name, buffer in module.named_buffers():
        if "_w3j_" in name:
            buffer.neg_()
    flipped = ConvProblem.from_e3nn(module)
    assert set(flipped.flipped) == {flipped.degrees(path) for path in flipped.paths} - old
    x, y, w = random_operands(flipped, 6, 6, seed=2)
    assert_close(tensor_product_reference(flipped, x, y, w), module(x, y, w), 1e-13)
    assert_close(TensorProduct(flipped)(x, y, w), module(x, y, w), 1e-12)


@pytest.mark.parametrize("factor", [1.001, 0.0, float("nan")])
def test_other_constants_are_refused(factor: float) -> None:
    module = e3nn_module("uvu")
    next(b for n, b in module.named_buffers() if "_w3j_1_2_1" in n).mul_(factor)
    with pytest.raises(UnsupportedProblemError, match=r"3j buffer \(1, 2, 1\) differs .* by"):
        ConvProblem.from_e3nn(module)


@pytest.mark.parametrize(
    ("irreps", "mode"),
    [
        (("4x1o", "4x1o", "4x0e"), "uuu"),
        (("4x1o", "4x1o", "3x0e"), "uuw"),
        (("4x1o", "3x1o", "3x0e"), "uvv"),
        (("4x1o", "3x1o", "12x0e"), "uvuv"),
    ],
)
def test_other_modes_are_refused(irreps: tuple[str, str, str], mode: str) -> None:
    with default_dtype(torch.float64):
        module = e3nn_o3().TensorProduct(*irreps, [(0, 0, 0, mode, True)])
    with pytest.raises(UnsupportedProblemError, match=f"connection mode '{mode}' has no generated"):
        ConvProblem.from_e3nn(module)


def test_subclass_with_weights_inside() -> None:
    with default_dtype(torch.float64):
        module = e3nn_o3().FullyConnectedTensorProduct("6x0e+4x1o", "3x0e", "5x0e+2x1o")
    problem = ConvProblem.from_e3nn(module)
    assert problem.shared_weights
    assert {path.mode for path in problem.paths} == {"uvw"}
    x, y, _ = random_operands(problem, 7, 7, seed=8)
    assert_close(TensorProduct(problem)(x, y, module.weight), module(x, y), 1e-12)


def test_options_of_the_description() -> None:
    problem = ConvProblem.from_e3nn(e3nn_module("uvu"), dtype="float32", layout="ir_mul")
    assert (problem.dtype, problem.layout) == ("float32", "ir_mul")
    assert problem.rounded == ()


def test_module_is_left_as_it_was() -> None:
    module = e3nn_module("uvu odd")
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    problem = ConvProblem.from_e3nn(module)
    problem.w3j((1, 1, 1))
    for name, buffer in module.named_buffers():
        assert (buffer == before[name]).all(), name
    assert np.abs(problem.w3j((1, 1, 1)) - wigner_3j(1, 1, 1)).max() == 0
