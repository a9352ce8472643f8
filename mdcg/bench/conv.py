"""Measures one convolution layer; every function here runs inside a benchmark process."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch

from .cases import CASES
from .jobs import ConvJob
from .passes import Inputs, make_inputs, make_pass, reference, relative_errors, to_common
from .peers import Graph, Layer, Prepared, build_layer, choose_peers
from .roofline import problem_work
from .systems import System, fragment, make_system, neighbours
from .timing import clock_for, interleave, peak_memory

__all__ = ["measure_memory", "measure_startup", "measure_timing"]


def _graph(job: ConvJob, system: System) -> Graph:
    edges = neighbours(system, job.r_max, order=job.order, threads=torch.get_num_threads())
    device = torch.device(job.device)
    sender, receiver = (
        torch.from_numpy(index).to(device) for index in (edges.sender, edges.receiver)
    )
    return Graph(len(system), sender, receiver)


def _tiny_graph(job: ConvJob) -> Graph:
    """Return a graph to warm up on: same code paths, next to no memory."""
    return _graph(job, fragment(make_system(job.system, job.atoms)))


def _prepared(job: ConvJob, layer: Layer, graph: Graph) -> Iterator[tuple[str, Prepared]]:
    for peer in choose_peers(job.impls, job.device):
        yield peer.name, peer.prepare(layer, graph)


def measure_timing(job: ConvJob) -> dict[str, Any]:
    """Time all implementations side by side and compare them with float64.

    Returns
    -------
    dict
        ``edges``, sizes of the problem, and ``rows``: one per pass and implementation.
    """
    clock = clock_for(job.device)
    layer = build_layer(CASES[job.case], getattr(torch, job.dtype))
    graph = _graph(job, make_system(job.system, job.atoms))
    inputs = make_inputs(layer, graph, job.seed)
    prepared = dict(_prepared(job, layer, graph))
    expected = {}
    if job.check:
        exact = build_layer(CASES[job.case], torch.float64).tensor_product
        expected = reference(exact, graph, inputs, job.passes)
    rows = []
    for name in job.passes:
        runs = {impl: make_pass(name, ready, inputs) for impl, ready in prepared.items()}
        errors = {}
        for impl, run in runs.items() if job.check else ():
            results = to_common(name, prepared[impl], run())
            errors[impl] = max(relative_errors(results, expected[name]))
        timings = interleave(runs, clock, repeats=job.repeats, warmup=job.warmup)
        work = problem_work(layer.problem, name, graph.n_nodes, len(graph.sender))
        for impl, timing in timings.items():
            rows.append(
                {
                    "pass": name,
                    "impl": impl,
                    "seconds": timing.as_dict(),
                    "relative_error": errors.get(impl),
                    "flops": work.flops,
                    "bytes": work.bytes,
                }
            )
    return {**_sizes(layer, graph), "torch_threads": torch.get_num_threads(), "rows": rows}


def _sizes(layer: Layer, graph: Graph) -> dict[str, Any]:
    problem = layer.problem
    return {
        "nodes": graph.n_nodes,
        "edges": len(graph.sender),
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
        Per pass: bytes of the operands, of everything above them, and the method.
    """
    layer = build_layer(CASES[job.case], getattr(torch, job.dtype))
    (peer,) = choose_peers([impl], job.device)
    warm_graph = _tiny_graph(job)
    warm = make_inputs(layer, warm_graph, job.seed)
    for name in job.passes:
        run = make_pass(name, peer.prepare(layer, warm_graph), warm)
        for _ in range(job.warmup):
            run()
    graph = _graph(job, make_system(job.system, job.atoms))
    inputs = make_inputs(layer, graph, job.seed)
    found = {}
    for name in job.passes:
        run = make_pass(name, peer.prepare(layer, graph), inputs)
        peak = peak_memory(run)
        found[name] = {
            "operand_bytes": inputs.nbytes,
            "extra_bytes": peak.extra_bytes,
            "peak_bytes": inputs.nbytes + peak.extra_bytes,
            "method": peak.method,
        }
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
    layer = build_layer(CASES[job.case], getattr(torch, job.dtype))
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
