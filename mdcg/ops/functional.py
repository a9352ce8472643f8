"""The functions that users call: they check arguments and call the operators."""

from __future__ import annotations

import torch

from ..errors import DeviceError, a_type
from ..plan import CudaPlan, HostPlan
from ..plan.contraction import CudaContractionPlan, HostContractionPlan
from ..problem import ConvProblem, SymmetricContractionProblem
from .operators import contraction
from .operators import conv as conv_operator


def check_operand(
    name: str,
    tensor: torch.Tensor,
    shape: tuple[int | str, ...],
    problem: ConvProblem | SymmetricContractionProblem,
) -> None:
    """Raise unless an operand has this shape and the problem's type.

    A dimension given by a name may have any length.
    """
    check_device(name, tensor)
    if tensor.dim() != len(shape) or any(
        want != got
        for want, got in zip(shape, tensor.shape, strict=True)
        if not isinstance(want, str)
    ):
        # printed only in this case: printing a size makes it a constant for a tracing compiler
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, expected ({', '.join(map(str, shape))}) "
            f"for problem {problem.key()}: was it built for another layer?"
        )
    _check_type(name, tensor, problem)


def _check_type(
    name: str, tensor: torch.Tensor, problem: ConvProblem | SymmetricContractionProblem
) -> None:
    if tensor.dtype != getattr(torch, problem.dtype):
        raise TypeError(
            f"{name} is {tensor.dtype}, expected torch.{problem.dtype}: convert it, "
            "or use problem.with_dtype()"
        )


def _check_weights(
    weights: torch.Tensor | None, like: torch.Tensor, rows: int, problem: ConvProblem
) -> torch.Tensor:
    if weights is not None:
        check_device("weights", weights)
    if problem.weight_numel == 0:
        if weights is not None and weights.numel():
            raise ValueError(
                f"weights has shape {tuple(weights.shape)}, but problem {problem.key()} has none: "
                "pass None"
            )
        return like.new_empty(0) if weights is None else weights.reshape(-1)
    if weights is None:
        raise ValueError(
            f"weights are missing, expected {problem.weight_numel} per "
            f"{'problem' if problem.shared_weights else 'edge'}"
        )
    if problem.shared_weights:
        if weights.shape not in ((problem.weight_numel,), (1, problem.weight_numel)):
            raise ValueError(
                f"weights has shape {tuple(weights.shape)}, expected ({problem.weight_numel},) "
                f"for the shared weights of problem {problem.key()}"
            )
        _check_type("weights", weights, problem)
        return weights.reshape(-1)
    check_operand("weights", weights, (rows, problem.weight_numel), problem)
    return weights


def check_device(name: str, tensor: torch.Tensor) -> None:
    """Raise unless the argument is a tensor on a device that kernels run on."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is {a_type(tensor)}, expected a torch.Tensor")
    if tensor.device.type not in ("cpu", "cuda"):
        raise DeviceError(
            f"{name} is on {tensor.device}, but kernels run on the CPU and on CUDA devices: "
            "move model and inputs with .to('cpu'), or call mdcg.unpatch_model"
        )


def check_together(
    name: str, tensor: torch.Tensor | None, first: str, operand: torch.Tensor
) -> None:
    """Raise unless both are on the same device."""
    if tensor is not None and tensor.device != operand.device:
        raise ValueError(f"{name} is on {tensor.device}, {first} on {operand.device}: move one")


def _check_indices(name: str, index: torch.Tensor, node_feats: torch.Tensor) -> None:
    if not isinstance(index, torch.Tensor):
        raise TypeError(f"{name} is {a_type(index)}, expected a torch.Tensor")
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"{name} has shape {tuple(index.shape)} and type {index.dtype}, "
            "expected (n_edges,) of torch.int32 or torch.int64"
        )
    check_together(name, index, "node_feats", node_feats)


def conv(
    problem: ConvProblem,
    node_feats: torch.Tensor,
    edge_attrs: torch.Tensor,
    weights: torch.Tensor | None,
    sender: torch.Tensor,
    receiver: torch.Tensor,
    *,
    num_receivers: int | None = None,
    plan: HostPlan | CudaPlan | None = None,
) -> torch.Tensor:
    r"""Fused Clebsch-Gordan convolution: tensor product on edges, sum on receivers.

    .. math:: out_i = \sum_{e:\,receiver(e)=i} \mathrm{TP}_{w_e}\big(x_{sender(e)},\ y_e\big)

    Parameters
    ----------
    problem : ConvProblem
        Irreps, paths, layout and dtype. Kernels are compiled once and cached on disk.
    node_feats : torch.Tensor, shape (n_nodes, problem.irreps_in1.dim)
        Node features x of type ``problem.dtype``.
    edge_attrs : torch.Tensor, shape (n_edges, problem.irreps_in2.dim)
        Spherical harmonics y of the edge vectors.
    weights : torch.Tensor or None
        Shape (n_edges, problem.weight_numel), or (problem.weight_numel,) if weights are shared, or
        None if no path has weights. In the order of the paths; ``[u][v]`` or ``[u][v][w]`` inside a
        path.
    sender, receiver : torch.Tensor, shape (n_edges,), int32 or int64
        Edge e carries a message from ``sender[e]`` to ``receiver[e]``. Edges may have any order.
        MACE: rows 0 and 1 of ``edge_index``. NequIP: rows 1 and 0.
    num_receivers : int, optional
        Rows of the result; default n_nodes.
    plan : HostPlan or CudaPlan, optional
        Default: chosen for this machine.

    Returns
    -------
    torch.Tensor, shape (num_receivers, problem.irreps_out.dim)
        Summed messages; nodes without incoming edges get zeros. Differentiable any number of times.
        On a CPU, equal inputs give bitwise equal results, whatever the number of threads. On a CUDA
        device the order of sums in gradients varies from run to run, unless
        ``torch.use_deterministic_algorithms(True)`` or the plan asks for one order.

    Raises
    ------
    ValueError
        A shape, device or index does not fit the problem.
    TypeError
        An operand is not of type ``problem.dtype``.
    KernelCompileError
        No host compiler (CPU) or NVRTC (CUDA), or it rejected the kernel.
    UnsupportedProblemError
        The problem is larger than the CUDA kernels can count or hold.
    DeviceError
        The operands are on another kind of device, or the CUDA driver cannot run the kernels.

    Notes
    -----
    Source: e3nn ``TensorProduct`` (Geiger & Smidt 2022, arXiv:2207.09453). No message is stored:
    the memory needed is one copy of the node rows besides operands and result.

    On a CUDA device the order of edges is remembered for the memory of `sender` and `receiver`
    until torch's count of changes to it differs. If another library, or ``.data``, writes new
    indices to the same memory, pass clones.

    Examples
    --------
    >>> import torch
    >>> problem = ConvProblem.build("4x0e", "0e+1o", "4x0e+4x1o", [(0, 0, 0), (0, 1, 1)])
    >>> x, y, w = torch.ones(3, 4), torch.ones(2, 4), torch.ones(2, 8)
    >>> conv(problem, x, y, w, torch.tensor([0, 1]), torch.tensor([2, 2])).shape
    torch.Size([3, 16])
    """
    check_device("node_feats", node_feats)
    check_device("edge_attrs", edge_attrs)
    _check_indices("sender", sender, node_feats)
    _check_indices("receiver", receiver, node_feats)
    if sender.shape != receiver.shape or sender.dtype != receiver.dtype:
        raise ValueError(
            f"sender is {tuple(sender.shape)} {sender.dtype}, receiver {tuple(receiver.shape)} "
            f"{receiver.dtype}: expected equal shapes and types"
        )
    edges = sender.shape[0]
    check_operand("node_feats", node_feats, ("n", problem.irreps_in1.dim), problem)
    check_operand("edge_attrs", edge_attrs, (edges, problem.irreps_in2.dim), problem)
    w = _check_weights(weights, node_feats, edges, problem)
    check_together("edge_attrs", edge_attrs, "node_feats", node_feats)
    check_together("weights", weights, "node_feats", node_feats)
    rows = node_feats.shape[0] if num_receivers is None else num_receivers
    if rows < 0:
        raise ValueError(f"num_receivers is {rows}, expected 0 or more")
    if sender.is_cuda and torch.compiler.is_compiling():
        sender = torch.ops.mdcg.sorted_edges(sender, receiver, node_feats.shape[0], rows)
    plan_json = plan.to_json() if plan is not None else ""
    return conv_operator(
        node_feats, edge_attrs, w, sender, receiver, rows, problem.to_json(), plan_json
    )


def tensor_product(
    problem: ConvProblem,
    x1: torch.Tensor,
    x2: torch.Tensor,
    weights: torch.Tensor | None = None,
    *,
    plan: HostPlan | CudaPlan | None = None,
) -> torch.Tensor:
    """Tensor product of every row of a batch, without a graph.

    Parameters
    ----------
    problem : ConvProblem
    x1 : torch.Tensor, shape (..., problem.irreps_in1.dim)
    x2 : torch.Tensor, shape (..., problem.irreps_in2.dim)
        Leading dimensions broadcast against those of ``x1``.
    weights : torch.Tensor or None
        Shape (..., problem.weight_numel), or (problem.weight_numel,) if weights are shared.
    plan : HostPlan or CudaPlan, optional

    Returns
    -------
    torch.Tensor, shape (..., problem.irreps_out.dim)
        Differentiable any number of times.

    Raises
    ------
    ValueError, TypeError, DeviceError, KernelCompileError
        As in :func:`conv`.
    """
    check_device("x1", x1)
    check_device("x2", x2)
    leading = [x1.shape[:-1], x2.shape[:-1]]
    per_row = not problem.shared_weights and problem.weight_numel > 0
    if per_row and weights is not None:
        leading.append(weights.shape[:-1])
    try:
        batch: torch.Size = torch.broadcast_shapes(*leading)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        shapes = ", ".join(str(tuple(shape)) for shape in leading)
        raise ValueError(
            f"leading dimensions of the operands are {shapes}: expected shapes that broadcast"
        ) from error

    def rows_of(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.expand(*batch, tensor.shape[-1]).reshape(-1, tensor.shape[-1])

    x, y = rows_of(x1), rows_of(x2)
    check_operand("x1", x, ("n", problem.irreps_in1.dim), problem)
    check_operand("x2", y, (x.shape[0], problem.irreps_in2.dim), problem)
    w = rows_of(weights) if per_row and weights is not None else weights
    w = _check_weights(w, x, x.shape[0], problem)
    check_together("x2", x2, "x1", x1)
    check_together("weights", weights, "x1", x1)
    plan_json = plan.to_json() if plan is not None else ""
    out: torch.Tensor = conv_operator(x, y, w, None, None, x.shape[0], problem.to_json(), plan_json)
    return out.reshape(*batch, problem.irreps_out.dim)


Tensor = torch.Tensor


def symmetric_contraction(
    problem: SymmetricContractionProblem,
    node_feats: Tensor,
    coefficients: Tensor,
    node_attrs: Tensor | None = None,
    *,
    plan: HostContractionPlan | CudaContractionPlan | None = None,
) -> Tensor:
    r"""Evaluate polynomials of every node's features, weighted by its species.

    .. math:: out_{n,c,m} = \sum_r \Big(\sum_s a_{n,s}\, k_{s,r,c}\Big)\, P_{r,m}(x_{n,c})

    Parameters
    ----------
    problem : SymmetricContractionProblem
        Polynomials and dtype. Kernels are compiled once and cached on disk.
    node_feats : torch.Tensor, shape (n_nodes, problem.channels, problem.dim_in)
        Node features x of type ``problem.dtype``.
    coefficients : torch.Tensor, shape (n_species, problem.num_coefficients, problem.channels)
        Coefficients k. Without `node_attrs`, the first axis is n_nodes.
    node_attrs : torch.Tensor or None, shape (n_nodes, n_species)
        Attributes a, usually one-hot. Other rows mix coefficients, which takes more time. Integers
        of shape (n_nodes,) are species numbers.
    plan : HostContractionPlan or CudaContractionPlan, optional
        Default: chosen for this machine.

    Returns
    -------
    torch.Tensor, shape (n_nodes, problem.channels * problem.dim_out)
        Output blocks one after the other, ``[channels][2l+1]`` inside a block. Differentiable any
        number of times in all operands. On a CPU, equal inputs give bitwise equal results,
        whatever the number of threads.

    Raises
    ------
    ValueError
        A shape does not fit the problem, or a species number is out of range (on a CPU).
    TypeError
        An operand is not of type ``problem.dtype``.
    KernelCompileError
        No host compiler (CPU) or NVRTC (CUDA), or it rejected the kernel.
    DeviceError
        The operands are on another kind of device, or the CUDA driver cannot run the kernels.

    Notes
    -----
    Source: the symmetric contraction of MACE (Batatia et al. 2022, arXiv:2206.07697, eq. 10, 11).

    Examples
    --------
    >>> import torch
    >>> from mdcg.problem import Polynomial, SymmetricContractionProblem
    >>> square = Polynomial(0, (((1.0, (0, 0)),),))
    >>> problem = SymmetricContractionProblem.build("2x0e", "2x0e", [square])
    >>> x, k = torch.tensor([[[3.0], [4.0]]]), torch.ones(5, 1, 2)
    >>> symmetric_contraction(problem, x, k, torch.tensor([4]))
    tensor([[ 9., 16.]])
    """
    nodes: int | str = node_feats.shape[0] if node_feats.dim() == 3 else "n"
    check_operand("node_feats", node_feats, ("n", problem.channels, problem.dim_in), problem)
    rows: int | str = nodes if node_attrs is None else "n_species"
    shape = (rows, problem.num_coefficients, problem.channels)
    check_operand("coefficients", coefficients, shape, problem)
    if node_attrs is not None:
        if not node_attrs.is_floating_point() and node_attrs.dim() == 1:
            node_attrs = _one_hot(node_attrs, coefficients)
        check_operand("node_attrs", node_attrs, (nodes, coefficients.shape[0]), problem)
    for name, tensor in (("coefficients", coefficients), ("node_attrs", node_attrs)):
        check_together(name, tensor, "node_feats", node_feats)
    if node_attrs is not None and node_attrs.requires_grad:
        # rare: the operator has no gradient for the attributes, so torch mixes the coefficients
        coefficients = torch.einsum("ns,src->nrc", node_attrs, coefficients)
        node_attrs = None
    plan_json = plan.to_json() if plan is not None else ""
    return contraction(node_feats, coefficients, node_attrs, problem.to_json(), plan_json)


def _one_hot(species: Tensor, coefficients: Tensor) -> Tensor:
    count = coefficients.shape[0]
    if species.dtype not in (torch.int32, torch.int64):
        raise TypeError(
            f"node_attrs is {species.dtype}, expected a row of numbers per node, or species as "
            "torch.int32 or torch.int64"
        )
    # reading the values would make the host wait for a CUDA device
    if species.device.type == "cpu" and species.numel() and not torch.compiler.is_compiling():
        low, high = int(species.min()), int(species.max())
        if low < 0 or high >= count:
            raise ValueError(
                f"node_attrs has species {low} to {high}, expected 0 to {count - 1}, as "
                f"coefficients has {count} rows"
            )
    numbers = torch.arange(count, device=species.device)
    return (species[:, None] == numbers).to(coefficients.dtype)
