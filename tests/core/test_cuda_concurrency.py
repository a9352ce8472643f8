"""CUDA kernels among others: streams, devices, captured graphs, compilers, sizes; needs a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch

from mdcg.ops import conv
from mdcg.ops.reference import conv_reference
from mdcg.problem import ConvProblem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

Tensor = torch.Tensor
DEVICE = "cuda"
NODES, EDGES = 50, 1200
PATHS = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]


def small(mul: int = 40, dtype: str = "float64") -> ConvProblem:
    rows = f"{mul}x0e+{mul}x1o"
    return ConvProblem.build(rows, "0e+1o", rows, PATHS, dtype=dtype)


def inputs(
    problem: ConvProblem, seed: int, device: str = DEVICE, nodes: int = NODES, edges: int = EDGES
) -> list[Tensor]:
    """Draw x, y, w, g, sender, receiver; the last node has no edge, edges are unsorted."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, problem.dtype)
    shapes = [
        (nodes, problem.irreps_in1.dim),
        (edges, problem.irreps_in2.dim),
        (edges, problem.weight_numel),
        (nodes, problem.irreps_out.dim),
    ]
    rows = [torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes]
    indices = torch.randint(0, max(nodes - 1, 1), (2, edges), generator=generator)
    return [t.to(device) for t in (*rows, *indices)]


def passes(problem: ConvProblem, values: list[Tensor], function: Callable[..., Tensor] = conv):  # type: ignore[no-untyped-def]
    """Return value, gradients, and gradients of the squares of those."""
    x, y, w, g, sender, receiver = values
    operands = [t.detach().clone().requires_grad_() for t in (x, y, w)]
    out = function(problem, *operands, sender, receiver)
    first = torch.autograd.grad(out, operands, g, create_graph=True)
    second = torch.autograd.grad(sum(d.square().sum() for d in first), operands)
    return [t.detach() for t in (out, *first, *second)]


def close(got: list[Tensor], expected: list[Tensor], limit: float = 1e-12) -> None:
    for number, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert a.shape == b.shape, number
        if b.numel():
            scale = b.abs().max().item() or 1.0
            error = (a.to(b.device, b.dtype) - b).abs().max().item() / scale
            assert error < limit, (number, error)


# -- streams and devices --------------------------------------------------------------------------


def test_several_streams_at_once() -> None:
    """Streams with different problems, with their own graphs and a shared one, run at once."""
    problems = [small(mul) for mul in (8, 33, 40, 64)]
    drawn = [inputs(problem, seed) for seed, problem in enumerate(problems)]
    calls = list(zip(problems, drawn, strict=True))
    calls += [(problem, values[:4] + drawn[0][4:]) for problem, values in calls]
    expected = [passes(problem, values, conv_reference) for problem, values in calls]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in calls]
    found = []
    for _ in range(3):
        for (problem, values), stream in zip(calls, streams, strict=True):
            with torch.cuda.stream(stream):
                found.append(passes(problem, values))
    torch.cuda.synchronize()
    for number, got in enumerate(found):
        close(got, expected[number % len(calls)])


def test_several_threads_at_once() -> None:
    """Threads that call a problem for the first time at once get the right results."""
    problem = small(23)
    drawn = [inputs(problem, seed) for seed in range(4)]
    expected = [passes(problem, values, conv_reference) for values in drawn]
    torch.cuda.synchronize()
    found: dict[int, list[Tensor]] = {}

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                found[number] = passes(problem, drawn[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for number, wanted in enumerate(expected):
        close(found[number], wanted)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="only one CUDA device is here")
def test_several_devices_in_one_process() -> None:
    """Kernels run on the device of their tensors, not on the current device."""
    problem = small()
    expected = passes(problem, inputs(problem, 5), conv_reference)
    for current in (0, 1):
        with torch.cuda.device(current):
            found = [passes(problem, inputs(problem, 5, f"cuda:{d}")) for d in (1, 0, 1)]
            assert torch.cuda.current_device() == current
        assert [got[0].device.index for got in found] == [1, 0, 1]
        for got in found:
            close(got, expected)


# -- captured graphs ------------------------------------------------------------------------------


def test_a_captured_step_follows_new_values() -> None:
    """A captured forward and backward pass can be replayed with other values and edges."""
    problem = small()
    static = [t.requires_grad_() if t.is_floating_point() else t for t in inputs(problem, 0)]
    x, y, w, g, sender, receiver = static

    def step() -> list[Tensor]:
        out = conv(problem, x, y, w, sender, receiver)
        return [out, *torch.autograd.grad(out, (x, y, w), g)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        results = step()
    for seed in (1, 2):
        with torch.no_grad():
            for kept, new in zip(static, inputs(problem, seed), strict=True):
                kept.copy_(new)
        captured.replay()
        torch.cuda.synchronize()
        fresh = inputs(problem, seed)
        close([t.detach() for t in results], passes(problem, fresh, conv_reference)[:4])


# -- torch.compile --------------------------------------------------------------------------------


def _layers(problem: ConvProblem) -> Callable[..., Tensor]:
    """Two convolutions among other operations, as a model has them."""

    def energy(x: Tensor, y: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
        sender, receiver = edge_index[0], edge_index[1]
        hidden = conv(problem, torch.nn.functional.silu(x), y, w.sin(), sender, receiver)
        out = conv(problem, hidden.tanh(), y * 0.5, w * 0.3 + 0.1, sender, receiver)
        return out.square().sum()

    return energy


def _energy_and_gradients(energy: Callable[..., Tensor], values: list[Tensor]) -> list[Tensor]:
    x, y, w, _, sender, receiver = values
    operands = [t.detach().clone().requires_grad_() for t in (x, y, w)]
    value = energy(*operands, torch.stack([sender, receiver]))
    return [value.detach(), *torch.autograd.grad(value, operands)]


@pytest.mark.filterwarnings("ignore")
def test_compiled_and_eager_agree_to_rounding() -> None:
    """Compiled and eager programs agree to 1e-12 in float64, and have similar errors in float32.

    They differ by about 1e-6 in float32, as the compiler reorders operations around the kernels.
    """
    torch.compiler.reset()
    exact = small(dtype="float64")
    compiled = torch.compile(_layers(exact), fullgraph=True)
    for seed in (0, 1):
        values = inputs(exact, seed)
        close(
            _energy_and_gradients(compiled, values), _energy_and_gradients(_layers(exact), values)
        )
    problem = small(dtype="float32")
    values = [t.float() if t.is_floating_point() else t for t in inputs(exact, 0)]
    truth = _energy_and_gradients(
        _layers(exact), [t.double() if t.is_floating_point() else t for t in values]
    )

    def errors(found: list[Tensor]) -> list[float]:
        return [
            ((a.double() - b).abs().max() / b.abs().max()).item()
            for a, b in zip(found, truth, strict=True)
        ]

    eager = errors(_energy_and_gradients(_layers(problem), values))
    again = errors(_energy_and_gradients(torch.compile(_layers(problem)), values))
    print("float32 errors: eager", eager, "compiled", again)
    for ours, theirs in zip(again, eager, strict=True):
        assert ours < 3 * theirs + 1e-6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_program_follows_edges_that_change_in_place(mode: str) -> None:
    torch.compiler.reset()
    problem = small()
    x, y, w, _, sender, receiver = inputs(problem, 0)
    edge_index = torch.stack([sender, receiver])

    def both(x: Tensor, y: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
        return conv(problem, x * 2, y, w, edge_index[0], edge_index[1]) + 1

    compiled = torch.compile(both, fullgraph=True, mode=mode)
    for seed in range(5):
        edge_index.copy_(torch.stack(inputs(problem, seed)[4:]))
        with torch.no_grad():
            close([compiled(x, y, w, edge_index).clone()], [both(x, y, w, edge_index.clone())])


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_program_may_reuse_the_memory_of_indices() -> None:
    """Edge lists in reused memory of a compiled program are not taken for earlier ones."""
    torch.compiler.reset()
    problem = small()
    x, y, w, *_ = inputs(problem, 0)
    lists = [torch.stack(inputs(problem, seed)[4:]) for seed in range(4)]

    def chain(x: Tensor, y: Tensor, w: Tensor, lists: list[Tensor]) -> Tensor:
        for edge_index in lists:
            shift = (x.sum() * 0).long()
            x = conv(problem, x, y, w, edge_index[0] + shift, edge_index[1] + shift).tanh()
        return x

    compiled = torch.compile(chain, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            close([compiled(x, y, w, lists)], [chain(x, y, w, lists)])
            lists = lists[1:] + lists[:1]


# -- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize(("nodes", "edges"), [(1, 5), (3, 1), (4, 0), (0, 0)])
def test_very_small_graphs(nodes: int, edges: int, index: torch.dtype) -> None:
    problem = small(5)
    values = inputs(problem, 3, nodes=nodes, edges=edges)
    values[4:] = [t.to(index) for t in values[4:]]
    close(passes(problem, values), passes(problem, values, conv_reference))


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.mem_get_info()[0] < 60 << 30,
    reason="weights, their cotangents and gradients take 60 GB of device memory",
)
def test_more_than_two_to_the_31_weights() -> None:
    problem = ConvProblem.build("128x0e", "0e+1o", "128x0e+128x1o", [(0, 0, 0), (0, 1, 1)])
    exact = problem.with_dtype("float64")
    nodes, edges = 2000, 2**31 // problem.weight_numel + 1000
    torch.manual_seed(0)
    x, g = (
        torch.randn(nodes, dim, device=DEVICE)
        for dim in (problem.irreps_in1.dim, problem.irreps_out.dim)
    )
    y = torch.randn(edges, problem.irreps_in2.dim, device=DEVICE)
    w = torch.randn(edges, problem.weight_numel, device=DEVICE)
    assert w.numel() > 2**31
    sender, receiver = torch.randint(nodes, (2, edges), device=DEVICE)
    operands = [t.requires_grad_() for t in (x, y, w)]
    out = conv(problem, *operands, sender, receiver)
    dx, dy, dw = torch.autograd.grad(out, operands, g, create_graph=True)
    c = torch.randn_like(w)
    (mixed,) = torch.autograd.grad(dw, x, c)  # gradient of phi(x, y, c, g)
    kept = slice(edges - 500, edges)
    first, last = dw[:500].detach().clone(), dw[kept].detach().clone()
    dx, dy = dx.detach(), dy.detach()
    del dw
    wanted_out, wanted_dx, wanted_mixed = (torch.zeros_like(t).double() for t in (out, x, x))
    wanted_dy = torch.empty_like(y)
    step = 250_000
    for begin in range(0, edges, step):
        part = slice(begin, min(begin + step, edges))
        a, b, v = (t.detach().double().requires_grad_() for t in (x, y[part], w[part]))
        value = conv_reference(exact, a, b, v, sender[part], receiver[part])
        grads = torch.autograd.grad(value, (a, b, v), g.double(), retain_graph=True)
        wanted_out += value.detach()
        wanted_dx += grads[0]
        wanted_dy[part] = grads[1].float()
        if begin == 0:
            close([first], [grads[2][:500]], 3e-6)
        if part.stop == edges:
            close([last], [grads[2][-500:]], 3e-6)
        other = conv_reference(exact, a, b, c[part].double(), sender[part], receiver[part])
        wanted_mixed += torch.autograd.grad(other, a, g.double())[0]
    close([out, dx, dy, mixed], [wanted_out, wanted_dx, wanted_dy, wanted_mixed], 1e-5)


# -- memory errors and races ----------------------------------------------------------------------

CASE = """
import torch
from mdcg.ops import conv, tensor_product
from mdcg.problem import ConvProblem
for mul, dtype in ((5, "float32"), (64, "float32"), (3, "float64")):
    rows = f"{mul}x0e+{mul}x1o"
    problem = ConvProblem.build(rows, "0e+1o", rows, [(0,0,0),(0,1,1),(1,0,1),(1,1,0)], dtype=dtype)
    like = dict(dtype=getattr(torch, dtype), device="cuda", requires_grad=True)
    x, y, w = (torch.ones(n, d, **like) for n, d in
               ((7, problem.irreps_in1.dim), (37, 4), (37, problem.weight_numel)))
    sender, receiver = torch.arange(37, device="cuda") % 7, torch.arange(37, device="cuda") % 5
    rows = torch.ones(37, problem.irreps_in1.dim, **like)
    for first, call in ((x, lambda: conv(problem, x, y, w, sender, receiver)),
                        (rows, lambda: tensor_product(problem, rows, y, w))):
        grads = torch.autograd.grad(call().sum(), (first, y, w), create_graph=True)
        torch.autograd.grad(sum(d.square().sum() for d in grads), (first, y, w))
torch.cuda.synchronize()
print("finished")
"""


# A kernel with a race between warps, which writes to ADDRESS; the tools must find the errors.
CONTROL = """
import torch
from mdcg import _core
from mdcg.runtime.cuda_build import load_cuda_kernels
out = torch.zeros(64, dtype=torch.int32, device="cuda")
source = r'''struct P { int* p; };
extern "C" __global__ void mdcg_control(const P a) {
    __shared__ int s[64];
    s[threadIdx.x] = threadIdx.x;
    a.p[threadIdx.x] = s[63 - threadIdx.x];
}'''
major, minor = torch.cuda.get_device_capability()
module = _core.CudaModule(0, load_cuda_kernels([source], f"sm_{major}{minor}")[0])
stream = torch.cuda.current_stream().cuda_stream
module.launch(module.function("mdcg_control", 0), 1, 64, 0, stream, [ADDRESS])
torch.cuda.synchronize()
"""


def _sanitize(tool: str, script: str) -> str:
    command = shutil.which("compute-sanitizer")
    if command is None:
        pytest.skip("compute-sanitizer of the CUDA toolkit is not on the path")
    # only mdcg's kernels, because torch's are slow under the tool
    options = ["--tool", tool, "--kernel-name", "kernel_substring=mdcg"]
    result = subprocess.run(
        [command, *options, sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return result.stdout + result.stderr


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_finds_nothing(tool: str) -> None:
    said = _sanitize(tool, CASE)
    assert "finished" in said, said[-3000:]
    assert "SUMMARY: 0 " in said, said[-3000:]


@pytest.mark.parametrize(
    ("tool", "address", "found"),
    [("memcheck", "256", "Invalid __global__ write"), ("racecheck", "out.data_ptr()", "hazard")],
)
def test_compute_sanitizer_would_find_something(tool: str, address: str, found: str) -> None:
    said = _sanitize(tool, CONTROL.replace("ADDRESS", address))
    assert found in said, said[-3000:]
    assert "SUMMARY: " in said, said[-3000:]
    assert "SUMMARY: 0 " not in said, said[-3000:]
