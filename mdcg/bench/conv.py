"""Measures one convolution layer; every function here runs inside a benchmark process."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import torch

from ..errors import UnsupportedProblemError
from .cases import CASES
from .gpu import device_times, release_memory
from .jobs import ConvJob
from .layer import Graph, Layer, Prepared, build_layer
from .passes import (
    Inputs,
    make_inputs,
    make_pass,
    reference,
    relative_errors,
    tensor_bytes,
    to_common,
)
from .peers import choose_peers
from .roofline import problem_work
from .systems import System, fragment, make_system, neighbours
from .timing import clock_for, interleave, peak_memory, stopwatch

__all__ = ["measure_memory", "measure_startup", "measure_timing", "refusal"]

_log = logging.getLogger("mdcg.bench")


def _graph(job: ConvJob, system: System) -> Graph:
    device = torch.device(job.device)
    edges = neighbours(system, job.r_max, order=job.order, threads=torch.get_num_threads())
    sender, receiver = (
        torch.from_numpy(index).to(device) for index in (edges.sender, edges.receiver)
    )
    return Graph(len(system), sender, receiver, order=job.order)


def _whole_graph(job: ConvJob) -> Graph:
    if job.batch is not None:
        return _batch(job.batch, job.device)
    return _graph(job, make_system(job.system, job.atoms))


def _tiny_graph(job: ConvJob) -> Graph:
    """Return a graph to warm up on: same code paths, next to no memory."""
    if job.batch is not None:
        return _batch(min(job.batch, 4), job.device)
    return _graph(job, fragment(make_system(job.system, job.atoms)))


def _batch(rows: int, device: str) -> Graph:
    each = torch.arange(rows, device=device)
    return Graph(rows, each, each, batched=True)


def refusal(impl: str, error: Exception) -> dict[str, Any]:
    """Say in one line why an implementation has no time.

    Returns
    -------
    dict
        ``impl``, ``reason``, and ``failed``: True for an error of mdcg that is none of its
        refusals. What another package raises says something about that package alone.
    """
    reason, failed = str(error), False
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        reason = "out of memory"
    elif not isinstance(error, UnsupportedProblemError):
        _log.warning("%s failed", impl, exc_info=error)
        failed = impl.startswith(("mdcg", "engine"))
        reason = f"{type(error).__name__}: {' '.join(reason.split())[:300]}"
    return {"impl": impl, "reason": reason, "failed": failed}


Refused = list[dict[str, Any]]


def _prepared(
    job: ConvJob, layer: Layer, graph: Graph, refused: Refused, spent: dict[str, float]
) -> dict[str, Prepared]:
    found = {}
    for peer in choose_peers(job.impls, job.device):
        try:
            with stopwatch(spent, f"prepare {peer.name}"):
                found[peer.name] = peer.prepare(layer, graph)
        except Exception as error:
            refused.append({**refusal(peer.name, error), "passes": list(job.passes)})
    return found


def _first_runs(
    job: ConvJob,
    graph: Graph,
    inputs: Inputs,
    prepared: Mapping[str, Prepared],
    refused: Refused,
    spent: dict[str, float],
) -> dict[str, dict[str, float | None]]:
    """Run every pass of every implementation once.

    Returns
    -------
    dict
        By pass and implementation, for what ran: the relative error, None without ``job.check``.
    """
    expected = {}
    if job.check:
        exact = build_layer(CASES[job.case], torch.float64, job.device).tensor_product
        with stopwatch(spent, "float64"):
            expected = reference(exact, graph, inputs, job.passes)
    errors: dict[str, dict[str, float | None]] = {name: {} for name in job.passes}
    for impl, ready in prepared.items():
        first = len(refused)
        for name in job.passes:
            try:
                with stopwatch(spent, f"first {name} {impl}"):
                    results = make_pass(name, ready, inputs)()
                    worst = None
                    if job.check:
                        common = to_common(name, ready, results)
                        worst = max(relative_errors(common, expected[name]))
                        del common
                errors[name][impl] = worst
                del results
            except Exception as error:
                found = refusal(impl, error)
                same = [one for one in refused[first:] if one["reason"] == found["reason"]]
                if same:
                    same[0]["passes"].append(name)
                else:
                    refused.append({**found, "passes": [name]})
        release_memory()
    return errors


def measure_timing(job: ConvJob) -> dict[str, Any]:
    """Time all implementations side by side and compare them with float64.

    On a CUDA device, memory and the kernels' own times are measured here too.

    Returns
    -------
    dict
        ``edges``, sizes of the problem, ``rows``: one per pass and implementation, and ``refused``:
        implementation, passes and reason of what could not be timed.
    """
    clock = clock_for(job.device)
    refused: Refused = []
    spent: dict[str, float] = defaultdict(float)
    with stopwatch(spent, "inputs"):
        layer = build_layer(CASES[job.case], getattr(torch, job.dtype), job.device)
        graph = _whole_graph(job)
        inputs = make_inputs(layer, graph, job.seed)
    prepared = _prepared(job, layer, graph, refused, spent)
    errors = _first_runs(job, graph, inputs, prepared, refused, spent)
    on_cpu = job.device == "cpu"
    rows: list[dict[str, Any]] = []
    for name in job.passes:
        runs = {impl: make_pass(name, prepared[impl], inputs) for impl in errors[name]}
        # on a GPU one call per sample, from an idle device, as the published timings are made
        options = {} if on_cpu else {"sample_seconds": 0.0}
        with stopwatch(spent, f"timing {name}"):
            timings = interleave(runs, clock, repeats=job.repeats, warmup=job.warmup, **options)
        work = problem_work(layer.problem, name, graph.n_nodes, len(graph.sender))
        for impl, timing in timings.items():
            rows.append(
                {
                    "pass": name,
                    "impl": impl,
                    "seconds": timing.as_dict(),
                    "relative_error": errors[name][impl],
                    "flops": work.flops,
                    "bytes": work.bytes,
                }
            )
        del runs
    for row in rows if not on_cpu else ():
        with stopwatch(spent, f"kernels {row['pass']}"):
            run = make_pass(row["pass"], prepared[row["impl"]], inputs)
            row |= _on_device(row["pass"], run, inputs)
    threads = torch.get_num_threads()
    return {
        **_sizes(layer, graph),
        "torch_threads": threads,
        "rows": rows,
        "refused": refused,
        "spent": {name: round(seconds, 2) for name, seconds in spent.items()},
    }


def _on_device(name: str, run: Callable[[], object], inputs: Inputs) -> dict[str, Any]:
    """Return memory and kernel times of a pass that has run before."""
    memory = _memory(name, run, inputs, "cuda")
    return {"memory": memory, **device_times(run).as_dict()}


def _memory(name: str, run: Callable[[], object], inputs: Inputs, device: str) -> dict[str, Any]:
    peak = peak_memory(run, device=device)
    tensors = tensor_bytes(name, inputs)
    total = inputs.nbytes + peak.extra_bytes
    return {
        "operand_bytes": inputs.nbytes,
        "extra_bytes": peak.extra_bytes,
        "peak_bytes": total,
        "tensor_bytes": tensors,
        "beyond_tensors": total / tensors - 1,
        "method": peak.method,
    }


def _sizes(layer: Layer, graph: Graph) -> dict[str, Any]:
    problem = layer.problem
    return {
        "nodes": graph.n_nodes,
        "edges": len(graph.sender),
        "batched": graph.batched,
        "irreps_in1": str(problem.irreps_in1),
        "irreps_in2": str(problem.irreps_in2),
        "irreps_out": str(problem.irreps_out),
        "problem": problem.key(),
        "weight_numel": problem.weight_numel,
        "out_dim": problem.irreps_out.dim,
        "paths": problem.num_paths,
        "nnz": problem.nnz,
    }


def measure_memory(job: ConvJob, impl: str) -> dict[str, Any]:
    """Measure the peak memory of one implementation, pass by pass.

    Returns
    -------
    dict
        Per pass: bytes of the operands, of everything above them, of all inputs, results and
        gradients, the share that is none of these, and the method.
    """
    layer = build_layer(CASES[job.case], getattr(torch, job.dtype))
    (peer,) = choose_peers([impl], job.device)
    warm_graph = _tiny_graph(job)
    warm = make_inputs(layer, warm_graph, job.seed)
    for name in job.passes:
        run = make_pass(name, peer.prepare(layer, warm_graph), warm)
        for _ in range(job.warmup):
            run()
    graph = _whole_graph(job)
    inputs = make_inputs(layer, graph, job.seed)
    found = {}
    for name in job.passes:
        run = make_pass(name, peer.prepare(layer, graph), inputs)
        found[name] = _memory(name, run, inputs, "cpu")
        del run
    return {"passes": found}


def measure_startup(job: ConvJob, impl: str) -> dict[str, Any]:
    """Measure what the first calls of a process cost beyond later ones.

    With an empty kernel cache that is the compilation, with a filled one the loading.

    Returns
    -------
    dict
        ``seconds``: first calls of all passes, minus the same calls again. ``counters``: what the
        implementation compiled and loaded, as it counts itself.
    """
    clock_for(job.device)
    layer = build_layer(CASES[job.case], getattr(torch, job.dtype), job.device)
    (peer,) = choose_peers([impl], job.device)
    graph = _tiny_graph(job)
    inputs = make_inputs(layer, graph, job.seed)
    prepared = peer.prepare(layer, graph)
    _first_use_of_torch(inputs)
    runs = [make_pass(name, prepared, inputs) for name in job.passes]

    def all_passes() -> float:
        start = perf_counter()
        for run in runs:
            run()
        if job.device == "cuda":
            torch.cuda.synchronize()
        return perf_counter() - start

    first = all_passes()
    counters = peer.counters()
    return {"seconds": max(0.0, first - all_passes()), "counters": counters}


def _first_use_of_torch(inputs: Inputs) -> None:
    """Run some autograd, so that its own first-call costs are not counted as the kernels'.

    The first call of an operator made with ``torch.library.custom_op`` imports ``torch._dynamo``:
    a second that has nothing to do with kernels.
    """
    import torch._dynamo

    x = inputs.node_feats.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(x.square().sum(), x, create_graph=True)
    torch.autograd.grad(gradient.square().sum(), x)
