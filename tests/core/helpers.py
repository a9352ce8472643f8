"""Problems, graphs, operands and comparisons shared by the tests of the core."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mdcg.codegen import KernelSpec
from mdcg.ops import conv, tensor_product
from mdcg.ops.host import HostKernels, host_kernels
from mdcg.ops.reference import conv_reference, tensor_product_reference
from mdcg.plan import CudaPlan, HostPlan
from mdcg.problem import ConvProblem, Irreps

ROOT = Path(__file__).resolve().parents[2]

# Sum over paths of random numbers of order one: the tolerance is relative to the largest entry.
RTOL = {"float64": 1e-12, "float32": 2e-5}


# -- problems -------------------------------------------------------------------------------------


def all_paths(
    irreps_in1: str, irreps_in2: str, irreps_out: str, mode: str = "uvu"
) -> list[tuple[int, int, int, str]]:
    """Return every path that parity, degree and (uvu) multiplicity allow."""
    in1, in2, out = (Irreps.parse(text) for text in (irreps_in1, irreps_in2, irreps_out))
    return [
        (i, j, k, mode)
        for i, a in enumerate(in1)
        for j, b in enumerate(in2)
        for k, c in enumerate(out)
        if a.ir.p * b.ir.p == c.ir.p
        and abs(a.ir.l - b.ir.l) <= c.ir.l <= a.ir.l + b.ir.l
        and (mode == "uvw" or a.mul == c.mul)
    ]


def small_problem(**options: Any) -> ConvProblem:
    """Return a problem with the paths of a first and a second layer, 8 channels."""
    paths = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0, "uvu", True, 0.57735)]
    return ConvProblem.build("8x0e+8x1o", "0e+1o", "8x0e+8x1o", paths, **options)


def mixed_problem(**options: Any) -> ConvProblem:
    """Return a problem with everything at once.

    Both modes, unequal multiplicities, mul2 > 1, several paths into one output, a path without
    weights, two blocks of one irrep, an input block without path.
    """
    paths = [
        (0, 0, 0, "uvu", True, 1.25),
        (0, 1, 1, "uvw", True, -0.5),
        (1, 0, 1, "uvw", True, 1.0),
        (1, 0, 2, "uvu", False, 0.75),
        (1, 1, 3, "uvu", True, 0.8),
        (1, 1, 0, "uvw", True, 0.3),
        (2, 1, 1, "uvw", True, 1.5),
    ]
    return ConvProblem.build(
        "5x0e+3x1o+2x1e+4x2e", "2x0e+1x1o", "5x0e+6x1o+3x1o+3x1e", paths, **options
    )


# -- kernels --------------------------------------------------------------------------------------

ALL = ("x", "y", "w", "g")


def usual_specs(*rows: bool) -> list[KernelSpec]:
    """Return forward, backward and double backward of everything, for ``conv`` in ``rows``."""
    found = []
    for conv_rows in rows or (True, False):
        found += [
            KernelSpec("forward", conv_rows),
            KernelSpec("backward", conv_rows, ALL[:3]),
            KernelSpec("double_backward", conv_rows, ALL, ALL[:3]),
        ]
    return found


def third_order_specs() -> list[KernelSpec]:
    """Return the further kernels of third derivatives of everything, for ``conv``."""
    return [KernelSpec("backward", True, names) for names in (("x", "y"), ("x", "w"), ("y", "w"))]


def compile_ahead(
    jobs: Iterable[tuple[ConvProblem, Sequence[KernelSpec]]], plan: HostPlan | None = None
) -> None:
    """Compile kernels two at a time; a test would ask for them one after the other."""
    text = plan.to_json() if plan is not None else ""
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(
            lambda job: host_kernels(job[0].to_json(), text).load(job[1]),
            [(problem, spec) for problem, specs in jobs for spec in specs],
        ):
            pass


@contextmanager
def recorded_specs() -> Iterator[list[str]]:
    """Record the kernels that are used, by their names."""
    seen: list[str] = []
    load = HostKernels.load

    def spy(self: HostKernels, spec: KernelSpec) -> Any:
        seen.append(str(spec))
        return load(self, spec)

    HostKernels.load = spy  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        HostKernels.load = load  # type: ignore[method-assign]


# -- graphs and operands --------------------------------------------------------------------------


@dataclass(frozen=True)
class Graph:
    """An edge list from ``n_senders`` to ``n_receivers`` nodes."""

    sender: torch.Tensor
    receiver: torch.Tensor
    n_senders: int
    n_receivers: int

    @property
    def n_edges(self) -> int:
        return self.sender.shape[0]

    def to(self, dtype: torch.dtype) -> Graph:
        return replace(self, sender=self.sender.to(dtype), receiver=self.receiver.to(dtype))


def generator(seed: int) -> torch.Generator:
    """Return a seeded generator of its own."""
    return torch.Generator().manual_seed(seed)


def random_graph(n_senders: int, n_receivers: int, n_edges: int, seed: int = 0) -> Graph:
    """Return an unsorted random edge list: duplicates, self loops and isolated nodes occur."""
    gen = generator(seed)
    if n_senders == 0 or n_receivers == 0:
        assert n_edges == 0
    sender = torch.randint(max(n_senders, 1), (n_edges,), generator=gen)
    receiver = torch.randint(max(n_receivers, 1), (n_edges,), generator=gen)
    return Graph(sender, receiver, n_senders, n_receivers)


def random_operands(
    problem: ConvProblem, n_rows: int, n_edges: int, seed: int = 0, *, grad: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return x, y and w (None without weights) of the problem's type."""
    gen = generator(seed)
    dtype = getattr(torch, problem.dtype)

    def draw(*shape: int) -> torch.Tensor:
        return (
            torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype).requires_grad_(grad)
        )

    x = draw(n_rows, problem.irreps_in1.dim)
    y = draw(n_edges, problem.irreps_in2.dim)
    if problem.weight_numel == 0:
        return x, y, None
    w = (
        draw(problem.weight_numel)
        if problem.shared_weights
        else draw(n_edges, problem.weight_numel)
    )
    return x, y, w


def on_device(
    tensors: Iterable[torch.Tensor | None], device: str
) -> tuple[torch.Tensor | None, ...]:
    return tuple(None if t is None else t.to(device) for t in tensors)


# -- comparison -----------------------------------------------------------------------------------


def assert_close(got: torch.Tensor, want: torch.Tensor, rtol: float, what: str = "result") -> None:
    """Compare relative to the largest entry; shapes and types must be equal."""
    assert got.shape == want.shape, (
        f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    )
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, expected {want.dtype}"
    if want.numel() == 0:
        return
    assert bool(torch.isfinite(got).all()), f"{what} is not finite"
    scale = float(want.detach().abs().max())
    error = float((got.detach() - want.detach()).abs().max())
    assert error <= rtol * scale, f"{what}: error {error:.2e} of {scale:.2e}, allowed {rtol:.0e}"


def derivatives(
    out: torch.Tensor, inputs: Sequence[torch.Tensor], order: int, seed: int = 5
) -> dict[str, torch.Tensor]:
    """Return the value and the derivatives of random projections up to an order, named.

    The cotangents of each order become inputs of the next: order 2 includes the gradient with
    respect to the cotangent of the output, and so on.
    """
    gen = generator(seed)
    found = {"value": out}
    outputs, wrt = [out], list(inputs)
    for k in range(1, order + 1):
        cotangents = [
            torch.randn(o.shape, generator=gen, dtype=torch.float64).to(o).requires_grad_()
            for o in outputs
        ]
        total = torch.stack([(o * c).sum() for o, c in zip(outputs, cotangents, strict=True)]).sum()
        outputs = list(torch.autograd.grad(total, wrt, create_graph=k < order))
        found |= {f"order {k}, input {i}": o for i, o in enumerate(outputs)}
        wrt = wrt + cotangents
    return found


def _compare(
    function: Callable[..., torch.Tensor],
    reference: Callable[..., torch.Tensor],
    problem: ConvProblem,
    operands: Iterable[torch.Tensor | None],
    order: int,
    rtol: float | None,
) -> None:
    """Compare two functions of x, y, w; the reference runs in float64."""
    given = tuple(operands)
    inputs = [None if t is None else t.detach().clone().requires_grad_() for t in given]
    # On a device this would select other kernels.
    on_cpu = all(t is None or t.device.type == "cpu" for t in given)
    with uninitialized_memory_is_nan() if on_cpu else nullcontext():
        got = derivatives(function(*inputs), [t for t in inputs if t is not None], order)
    inputs = [None if t is None else t.detach().double().requires_grad_() for t in given]
    want = derivatives(reference(*inputs), [t for t in inputs if t is not None], order)
    for name, value in want.items():
        tolerance = RTOL[problem.dtype] if rtol is None else rtol
        assert_close(got[name], value.to(got[name].dtype), tolerance, f"{problem}, {name}")


def check_conv(
    problem: ConvProblem,
    graph: Graph,
    *,
    order: int = 2,
    seed: int = 0,
    rtol: float | None = None,
    plan: HostPlan | CudaPlan | None = None,
    device: str = "cpu",
) -> None:
    """Compare the convolution with the reference in float64, derivatives included."""
    operands = on_device(random_operands(problem, graph.n_senders, graph.n_edges, seed), device)
    sender, receiver = graph.sender.to(device), graph.receiver.to(device)
    sides = {"sender": sender, "receiver": receiver, "num_receivers": graph.n_receivers}
    _compare(
        lambda *t: conv(problem, *t, **sides, plan=plan),
        lambda *t: conv_reference(problem, *t, **sides),
        problem,
        operands,
        order,
        rtol,
    )


def check_tensor_product(
    problem: ConvProblem,
    n_rows: int,
    *,
    order: int = 2,
    seed: int = 0,
    rtol: float | None = None,
    plan: HostPlan | CudaPlan | None = None,
    device: str = "cpu",
) -> None:
    """Compare the batched product with the reference in float64, derivatives included."""
    _compare(
        lambda *t: tensor_product(problem, *t, plan=plan),
        lambda *t: tensor_product_reference(problem, *t),
        problem,
        on_device(random_operands(problem, n_rows, n_rows, seed), device),
        order,
        rtol,
    )


# -- surroundings ---------------------------------------------------------------------------------


@contextmanager
def uninitialized_memory_is_nan() -> Iterator[None]:
    """Fill tensors of ``torch.empty`` with NaN, so that results that depend on them are NaN."""
    settings = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        settings.fill_uninitialized_memory = before[1]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with a number of threads, then restore the previous number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def e3nn_o3() -> Any:
    """Return ``e3nn.o3``; skips where e3nn is missing.

    e3nn 0.4.4 reads its constants with ``torch.load``, which since torch 2.6 refuses the slices in
    them (importing mace first would allow everything, for the whole process).
    """
    if importlib.util.find_spec("e3nn") is None:
        pytest.skip("e3nn is not installed: pip install 'mdcg[mace]'")
    with torch.serialization.safe_globals([slice]):
        return importlib.import_module("e3nn.o3")


def e3nn_version() -> tuple[int, ...]:
    """Return the version of e3nn as numbers."""
    from importlib.metadata import version

    return tuple(int(part) for part in version("e3nn").split(".")[:3])


def random_rotation(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return a random proper rotation."""
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    return q * np.sign(np.linalg.det(q))
