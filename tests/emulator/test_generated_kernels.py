"""Generated CUDA kernels as they are, run by the emulated device, against the definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdcg.ops.contraction import symmetric_contraction_reference
from mdcg.ops.reference import conv_reference
from mdcg.problem import ConvProblem, Polynomial, SymmetricContractionProblem

from .emulator import run_emulated

RTOL = {"float32": 3e-6, "float64": 1e-13}
PROGRAM = Path(__file__).with_name("run_kernels.py")
NODES, EDGES = 5, 13
# two receivers and a sender have no edges
SENDER = np.array([0, 1, 1, 2, 3, 0, 2, 2, 3, 1, 0, 3, 3])
RECEIVER = np.array([1, 1, 0, 3, 3, 0, 0, 3, 1, 3, 1, 0, 0])


def conv_problem(layout: str, dtype: str, **options: Any) -> ConvProblem:
    paths = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 2)]
    return ConvProblem.build(
        "5x0e+5x1o", "0e+1o", "5x0e+5x1o+5x1e", paths, layout=layout, dtype=dtype, **options
    )


def uvw_problem(layout: str, dtype: str) -> ConvProblem:
    paths = [(0, 0, 0, "uvw"), (0, 1, 1, "uvw"), (1, 0, 1, "uvu"), (1, 1, 0, "uvw")]
    return ConvProblem.build(
        "4x0e+3x1o", "2x0e+1x1o", "6x0e+3x1o", paths, layout=layout, dtype=dtype
    )


CONVOLUTIONS = {
    "mul_ir, float64": (conv_problem("mul_ir", "float64"), {}),
    "ir_mul, float64": (conv_problem("ir_mul", "float64"), {}),
    "mul_ir, float32": (conv_problem("mul_ir", "float32"), {}),
    "ir_mul, float32": (conv_problem("ir_mul", "float32"), {"deterministic": True}),
    "matrices": (uvw_problem("ir_mul", "float32"), {}),
}


def contraction_problem(dtype: str) -> SymmetricContractionProblem:
    scalars = Polynomial(0, (((0.7, (0,)), (-0.3, (1, 1)), (1.1, (0, 2, 2))),))
    vectors = tuple(((0.5, (k,)), (1.3, (0, k)), (-0.9, (1, k, k))) for k in (1, 2, 3))
    polynomials = [scalars, Polynomial(1, vectors)]
    return SymmetricContractionProblem.build("6x0e+6x1o", "6x0e+6x1o", polynomials, dtype=dtype)


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(dtype)


def gradients(
    value: torch.Tensor, leaves: list[torch.Tensor], g: torch.Tensor
) -> list[np.ndarray[Any, Any]]:
    return [d.numpy() for d in torch.autograd.grad(value, leaves, g)]


def test_against_the_definition(rng: np.random.Generator, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {}
    tasks: dict[str, dict[str, Any]] = {}
    wanted: dict[str, tuple[np.ndarray[Any, Any], float]] = {}

    def add(name: str, task: dict[str, Any], given: dict[str, Any]) -> None:
        tasks[name] = task
        arrays.update({f"{name}/{k}": v for k, v in given.items()})

    for name, (problem, plan) in CONVOLUTIONS.items():
        x = draw(rng, (NODES, problem.irreps_in1.dim), problem.dtype)
        y = draw(rng, (EDGES, problem.irreps_in2.dim), problem.dtype)
        w = draw(rng, (EDGES, problem.weight_numel), problem.dtype)
        g = draw(rng, (NODES, problem.irreps_out.dim), problem.dtype)
        given = {"x": x, "y": y, "w": w, "sender": SENDER, "receiver": RECEIVER}
        task = {"what": "convolution", "problem": problem.to_json(), "plan": plan}
        task |= {"num_receivers": NODES}
        add(f"{name} forward", {**task, "kind": "forward", "wants": []}, given)
        backward = {**task, "kind": "backward", "wants": ["x", "y", "w"]}
        add(f"{name} backward", backward, {**given, "g": g})
        leaves = [torch.tensor(t, dtype=torch.float64, requires_grad=True) for t in (x, y, w)]
        edges = [torch.tensor(SENDER), torch.tensor(RECEIVER)]
        value = conv_reference(problem, *leaves, *edges, num_receivers=NODES)
        limit = RTOL[problem.dtype]
        wanted[f"{name} forward/out"] = value.detach().numpy(), limit
        for n, d in zip("xyw", gradients(value, leaves, torch.tensor(g).double()), strict=True):
            wanted[f"{name} backward/d{n}"] = d, limit
    for dtype in ("float32", "float64"):
        contraction = contraction_problem(dtype)
        x = draw(rng, (NODES, contraction.channels, contraction.dim_in), dtype)
        w = draw(rng, (3, contraction.num_coefficients, contraction.channels), dtype)
        g = draw(rng, (NODES, contraction.channels * contraction.dim_out), dtype)
        y = np.eye(3, dtype=dtype)[[0, 2, 1, 2, 0]]
        y[1] = 0.5  # a mixture
        given = {"x": x, "w": w, "y": y}
        name = f"contraction, {dtype}"
        task = {"what": "contraction", "problem": contraction.to_json()}
        add(f"{name} forward", {**task, "kind": "forward", "wants": []}, given)
        backward = {**task, "kind": "backward", "wants": ["x", "w"]}
        add(f"{name} backward", backward, {**given, "g": g})
        xt = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        rows = np.einsum("ns,src->nrc", y.astype(float), w.astype(float))
        wt = torch.tensor(rows, requires_grad=True)
        # coefficients of a node's own: each node is a species
        value = symmetric_contraction_reference(
            contraction, xt, wt, torch.eye(NODES, dtype=torch.float64)
        )
        wanted[f"{name} forward/out"] = value.detach().numpy(), RTOL[dtype]
        for n, d in zip("xw", gradients(value, [xt, wt], torch.tensor(g).double()), strict=True):
            wanted[f"{name} backward/d{n}"] = d, RTOL[dtype]

    np.savez(tmp_path / "input.npz", tasks=json.dumps(tasks), **arrays)
    done = run_emulated(str(PROGRAM), str(tmp_path / "input.npz"), str(tmp_path / "output.npz"))
    assert done.returncode == 0, done.stdout + done.stderr
    with np.load(tmp_path / "output.npz") as results:
        assert set(results.files) == set(wanted)
        for name, (want, limit) in wanted.items():
            scale = np.abs(want).max()
            assert scale > 0, name
            error = np.abs(results[name] - want).max() / scale
            assert error <= limit, f"{name}: error {error:.1e}, allowed {limit:.0e}"
