"""``mdcg selftest``: whether engine and generated kernels are right on this machine."""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import KernelCompileError, UnsupportedProblemError, format_table
from . import selftest_device
from ._common import OK, heavy_work, sentence

if TYPE_CHECKING:
    import torch

    from ..problem import ConvProblem, SymmetricContractionProblem

    Problem: TypeAlias = ConvProblem | SymmetricContractionProblem

_LIMITS = {"float64": 1e-12, "float32": 2e-5}
_NODES, _EDGES, _SPECIES = 12, 60, 3
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


def _contractions() -> dict[str, SymmetricContractionProblem]:
    from ..problem import Polynomial, SymmetricContractionProblem

    # polynomials of (s, vx, vy, vz): s^2 + v.v, s, s v, (v.v) v and s^2 v
    scalars = [(1.0, (0, 0)), *((0.5, (i, i)) for i in (1, 2, 3))]
    cubic = [tuple((0.3, tuple(sorted((i, k, k)))) for k in (1, 2, 3)) for i in (1, 2, 3)]
    polynomials = [
        Polynomial(0, (tuple(scalars),)),
        Polynomial(0, (((1.0, (0,)),),)),
        Polynomial(1, tuple(((1.5, (0, i)),) for i in (1, 2, 3))),
        Polynomial(1, tuple(cubic)),
        Polynomial(1, tuple(((-0.7, (0, 0, i)),) for i in (1, 2, 3))),
    ]
    return {
        "symmetric contraction": SymmetricContractionProblem.build(
            "16x0e+16x1o", "16x0e+16x1o", polynomials
        ),
        "contraction, few channels": SymmetricContractionProblem.build(
            "5x0e+5x1o", "5x0e+5x1o", polynomials
        ),
    }


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "selftest",
        help="check the engine and, with torch, the kernels of patched models",
        description="Check energies and forces of the engine, with generic and generated kernels. "
        "Where torch is installed, compare the kernels of patched models with a plain computation: "
        "value, first and second derivatives. What cannot run here is skipped with the reason. "
        "With --device, compare the engine on a device with the CPU, and time it.",
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:N, hip or hip:N")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-v", "--verbose", action="store_true", help="log what is compiled")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print a table; return 3 if an error is above its limit."""
    from ..package.file import write_file

    of_device, path = options.device is not None, options.report

    def save(results: dict[str, Any]) -> None:
        if path is not None:
            write_file(path, (_json(results) + "\n").encode())

    save({"passed": False, "running": "the start"})  # a path that cannot be written ends it here
    with heavy_work(logging.INFO if options.verbose else logging.WARNING):
        results = selftest_device.test_device(options.device, save) if of_device else compare()
    shown = selftest_device.show if of_device else show
    print(_json(results) if options.json else shown(results), flush=True)
    save(results)
    return OK if results["passed"] else 3


def _json(results: dict[str, Any]) -> str:
    return json.dumps(results, indent=2, ensure_ascii=False)


def compare() -> dict[str, Any]:
    """Check the engine, and compare kernels of torch with the einsum reference.

    The engine's cases are those of :mod:`selftest_engine`. The others, with gradients and gradients
    of gradients, run on the CPU, and on the first CUDA device if torch finds one. The result has
    ``passed`` and a list ``cases``, each with its largest relative errors, or with ``skipped``, the
    reason why it has no kernels.
    """
    from . import selftest_engine  # needs the compiled core, which mdcg env does without

    cases = selftest_engine.compare() + _patched_cases()
    return {"passed": all(case["passed"] for case in cases), "cases": cases}


def _patched_cases() -> list[dict[str, Any]]:
    from ..runtime.compiler import find_compiler

    none = {"case": "patched models", "device": "cpu", "dtype": "-", "passed": True}
    none |= {"limit": _LIMITS["float64"], "seconds": 0.0}
    try:
        import torch
    except ModuleNotFoundError as error:
        return [{**none, "skipped": sentence(error)}]
    from ..ops.kernels import torch_has_cuda

    cases: list[dict[str, Any]] = []
    devices = ["cpu", "cuda"] if torch_has_cuda() else ["cpu"]
    if torch.version.hip is not None:
        reason = "patched models have no kernels for AMD's devices, which this torch is built for"
        cases.append({**none, "device": "cuda", "skipped": reason})
    try:
        find_compiler()
    except KernelCompileError as error:
        devices.remove("cpu")
        cases.append({**none, "skipped": str(error)})
    for device in devices:
        for name, problem in (_problems() | _contractions()).items():
            for dtype, limit in _LIMITS.items():
                started = time.perf_counter()
                result = _outcome(problem.with_dtype(dtype), device, limit)
                seconds = round(time.perf_counter() - started, 2)
                facts = {"case": name, "device": device, "dtype": dtype}
                cases.append({**facts, **result, "limit": limit, "seconds": seconds})
    return cases


def _outcome(problem: Problem, device: str, limit: float) -> dict[str, Any]:
    import torch

    from ..problem import ConvProblem

    make = _conv_case if isinstance(problem, ConvProblem) else _contraction_case
    generator = torch.Generator("cpu").manual_seed(_SEED)
    try:
        errors = _errors(make(problem, generator), generator, problem.dtype, device)
    except UnsupportedProblemError as error:
        if device == "cpu":  # CUDA kernels exist for every problem
            raise
        return {"skipped": str(error), "passed": True}
    return {**errors, "passed": all(error <= limit for error in errors.values())}


@dataclass
class _Case:
    """A function and its reference, with their differentiable and other arguments."""

    function: Callable[..., torch.Tensor]
    reference: Callable[..., torch.Tensor]
    inputs: list[torch.Tensor]
    others: list[torch.Tensor]
    out: tuple[int, int]


def _draw(generator: torch.Generator, *shape: int) -> torch.Tensor:
    import torch

    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def _conv_case(problem: Any, generator: torch.Generator) -> _Case:
    import torch

    from .. import ops
    from ..ops.reference import conv_reference

    weights = (problem.weight_numel,) if problem.shared_weights else (_EDGES, problem.weight_numel)
    shapes = ((_NODES, problem.irreps_in1.dim), (_EDGES, problem.irreps_in2.dim), weights)
    edges = torch.randint(0, _NODES - 1, (2, _EDGES), generator=generator, device="cpu")
    return _Case(
        partial(ops.conv, problem),
        partial(conv_reference, problem.with_dtype("float64")),
        [_draw(generator, *shape) for shape in shapes],
        list(edges),
        (_NODES, problem.irreps_out.dim),
    )


def _contraction_case(problem: Any, generator: torch.Generator) -> _Case:
    import torch

    from .. import ops
    from ..ops.reference import symmetric_contraction_reference

    attributes = torch.eye(_SPECIES, dtype=torch.float64)[torch.arange(_NODES) % _SPECIES]
    attributes[1] = _draw(generator, _SPECIES)  # nodes of all species and of none
    attributes[2] = 0
    return _Case(
        partial(ops.symmetric_contraction, problem),
        partial(symmetric_contraction_reference, problem.with_dtype("float64")),
        [
            _draw(generator, _NODES, problem.channels, problem.dim_in),
            _draw(generator, _SPECIES, problem.num_coefficients, problem.channels),
        ],
        [attributes],
        (_NODES, problem.channels * problem.dim_out),
    )


def _errors(case: _Case, generator: torch.Generator, name: str, device: str) -> dict[str, float]:
    import torch

    dtype = getattr(torch, name)
    directions = [_draw(generator, *value.shape) for value in case.inputs]
    cotangent = _draw(generator, *case.out)

    def derivatives(function: Any, exact: Any, where: str) -> tuple[Any, Any, Any]:
        def put(value: torch.Tensor) -> torch.Tensor:
            if not value.is_floating_point():
                return value.to(where)
            return value.to(dtype).to(where, exact)

        leaves = [put(v).requires_grad_() for v in case.inputs]
        seed = put(cotangent).requires_grad_()
        out = function(*leaves, *map(put, case.others))
        first = torch.autograd.grad(out, leaves, seed, create_graph=True)
        inner = torch.stack(
            [(g * put(d)).sum() for g, d in zip(first, directions, strict=True)]
        ).sum()
        return (out,), first, torch.autograd.grad(inner, [*leaves, seed])

    ours = derivatives(case.function, dtype, device)
    exact = derivatives(case.reference, torch.float64, "cpu")
    return {
        label: max(_relative(a, b) for a, b in zip(got, want, strict=True))
        for label, got, want in zip(
            ("forward", "backward", "double backward"), ours, exact, strict=True
        )
    }


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    scale = float(b.detach().abs().max())
    return float((a.detach().cpu().double() - b.detach()).abs().max()) / (scale or 1.0)


def _verdict(case: dict[str, Any]) -> str:
    if "skipped" in case:
        return f"skipped: {case['skipped']}"
    return "ok" if case["passed"] else "FAIL"


def show(results: dict[str, Any]) -> str:
    """Return a table and the verdict."""
    labels = ("forward", "backward", "double backward")
    rows = [
        (
            *(case["case"], case["device"], case["dtype"]),
            *(f"{case[label]:.0e}" if label in case else "-" for label in labels),
            f"{case['limit']:.0e}",
            f"{case['seconds']:.1f}",
            _verdict(case),
        )
        for case in results["cases"]
    ]
    columns = ("case", "device", "dtype", *labels, "limit", "s", "")
    table = format_table(columns, rows, right=(3, 4, 5, 6, 7))
    return f"{table}\nselftest: {'PASS' if results['passed'] else 'FAIL'}"
