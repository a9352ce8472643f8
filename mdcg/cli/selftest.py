"""``python -m mdcg selftest``: whether the generated kernels are right on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedProblemError

if TYPE_CHECKING:
    import torch

    from ..problem import ConvProblem

__all__ = ["run", "show"]

_LIMITS = {"float64": 1e-12, "float32": 2e-5}
_NODES, _EDGES = 12, 60
_SEED = 7


def _problems() -> dict[str, ConvProblem]:
    from ..problem import ConvProblem

    return {
        "MACE layer": ConvProblem.build(
            "16x0e+16x1o",
            "0e+1o+2e",
            "16x0e+16x0e+16x1o+16x1o+16x1o+16x2e+16x2e",
            [
                *((0, 0, 0), (1, 1, 1), (0, 1, 2), (1, 0, 3), (1, 2, 4), (0, 2, 5)),
                (1, 1, 6, "uvu", True, 0.7),
            ],
        ),
        "unequal multiplicities": ConvProblem.build(
            "5x0e+3x1o", "0e+1o", "5x0e+5x1o+3x1o", [(0, 0, 0), (0, 1, 1), (1, 0, 2)]
        ),
        "uvw and shared weights": ConvProblem.build(
            "4x0e+2x1o",
            "2x0e+1o",
            "3x0e+6x1o",
            [
                (0, 0, 0, "uvw", True, 0.5),
                (1, 1, 0, "uvw", True, 0.25),
                (1, 0, 1, "uvw", True, 1.5),
            ],
            shared_weights=True,
        ),
    }


def run() -> dict[str, Any]:
    """Compare value, gradients and gradients of gradients with the einsum reference.

    All cases run on the CPU, and on the first CUDA device if torch finds one.

    Returns
    -------
    dict
        ``passed`` and a list ``cases``, each with its largest relative errors, or with ``skipped``:
        why there are no kernels for it.
    """
    import torch

    cases = []
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for name, problem in _problems().items():
            for dtype, limit in _LIMITS.items():
                started = time.perf_counter()
                result = _outcome(problem.with_dtype(dtype), device, limit)
                seconds = round(time.perf_counter() - started, 2)
                facts = {"case": name, "device": device, "dtype": dtype}
                cases.append({**facts, **result, "limit": limit, "seconds": seconds})
    return {"passed": all(case["passed"] for case in cases), "cases": cases}


def _outcome(problem: ConvProblem, device: str, limit: float) -> dict[str, Any]:
    import torch

    try:
        errors = _errors(problem, torch, device)
    except UnsupportedProblemError as error:
        if device == "cpu":  # where every problem has kernels
            raise
        return {"skipped": str(error), "passed": True}
    return {**errors, "passed": all(error <= limit for error in errors.values())}


def _errors(problem: ConvProblem, torch: Any, device: str) -> dict[str, float]:
    from ..ops import conv
    from ..ops.reference import conv_reference

    generator = torch.Generator("cpu").manual_seed(_SEED)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    dtype = getattr(torch, problem.dtype)
    weights = (problem.weight_numel,) if problem.shared_weights else (_EDGES, problem.weight_numel)
    inputs = [
        draw(_NODES, problem.irreps_in1.dim),
        draw(_EDGES, problem.irreps_in2.dim),
        draw(*weights),
    ]
    directions = [draw(*value.shape) for value in inputs]
    cotangent = draw(_NODES, problem.irreps_out.dim)
    sender, receiver = torch.randint(0, _NODES - 1, (2, _EDGES), generator=generator, device="cpu")

    def derivatives(function: Any, dtype: Any, exact: Any, where: str) -> tuple[Any, Any, Any]:
        leaves = [v.to(dtype).to(where, exact).requires_grad_() for v in inputs]
        seed = cotangent.to(dtype).to(where, exact).requires_grad_()
        along = [v.to(dtype).to(where, exact) for v in directions]
        edges = sender.to(where), receiver.to(where)
        name = str(exact).removeprefix("torch.")
        out = function(problem.with_dtype(name), *leaves, *edges)
        first = torch.autograd.grad(out, leaves, seed, create_graph=True)
        inner = sum((g * d).sum() for g, d in zip(first, along, strict=True))
        return (out,), first, torch.autograd.grad(inner, [*leaves, seed])

    ours = derivatives(conv, dtype, dtype, device)
    exact = derivatives(conv_reference, dtype, torch.float64, "cpu")
    return {
        label: max(_relative(a, b) for a, b in zip(got, want, strict=True))
        for label, got, want in zip(
            ("forward", "backward", "double backward"), ours, exact, strict=True
        )
    }


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    scale = float(b.detach().abs().max())
    return float((a.detach().cpu().double() - b.detach()).abs().max()) / (scale or 1.0)


def show(results: dict[str, Any]) -> str:
    """Return a table and the verdict."""
    from ..patch.report import format_table

    labels = ("forward", "backward", "double backward")
    rows = [
        (
            *(case["case"], case["device"], case["dtype"]),
            *(f"{case[label]:.0e}" if label in case else "-" for label in labels),
            f"{case['limit']:.0e}",
            f"{case['seconds']:.1f}",
            case.get("skipped") or ("ok" if case["passed"] else "FAIL"),
        )
        for case in results["cases"]
    ]
    columns = ("case", "device", "dtype", *labels, "limit", "s", "")
    table = format_table(columns, rows, right=(3, 4, 5, 6, 7))
    return f"{table}\nselftest: {'PASS' if results['passed'] else 'FAIL'}"
