"""Symmetric contraction of node features: checked arguments in, operator out."""

from __future__ import annotations

import torch

from ..plan.contraction import CudaContractionPlan, HostContractionPlan
from ..problem import SymmetricContractionProblem
from .contraction_operators import contraction
from .functional import check_operand, check_together

__all__ = ["symmetric_contraction", "symmetric_contraction_reference"]

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
        k; without `node_attrs` one row per node.
    node_attrs : torch.Tensor or None, shape (n_nodes, n_species)
        a, usually one-hot: such rows cost nothing, others are mixed exactly. Integers of shape
        (n_nodes,) are species numbers.
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
        # rare: the mixture becomes an operand that has gradients
        coefficients = torch.einsum("ns,src->nrc", node_attrs, coefficients)
        node_attrs = None
    plan_json = plan.to_json() if plan is not None else ""
    out: Tensor = contraction(node_feats, coefficients, node_attrs, problem.to_json(), plan_json)
    return out


def _one_hot(species: Tensor, coefficients: Tensor) -> Tensor:
    count = coefficients.shape[0]
    if species.dtype not in (torch.int32, torch.int64):
        raise TypeError(
            f"node_attrs is {species.dtype}, expected a row of numbers per node, or species as "
            "torch.int32 or torch.int64"
        )
    # a look at the values would make the host wait for a CUDA device
    if species.device.type == "cpu" and species.numel() and not torch.compiler.is_compiling():
        low, high = int(species.min()), int(species.max())
        if low < 0 or high >= count:
            raise ValueError(
                f"node_attrs has species {low} to {high}, expected 0 to {count - 1}, as "
                f"coefficients has {count} rows"
            )
    numbers = torch.arange(count, device=species.device)
    return (species[:, None] == numbers).to(coefficients.dtype)


def symmetric_contraction_reference(
    problem: SymmetricContractionProblem,
    node_feats: Tensor,
    coefficients: Tensor,
    node_attrs: Tensor | None = None,
) -> Tensor:
    """Return the contraction by its definition; parameters as in :func:`symmetric_contraction`.

    The type of the operands is used, not that of the problem.
    """
    if node_attrs is not None:
        coefficients = torch.einsum("ns,src->nrc", node_attrs, coefficients)
    nodes, channels = node_feats.shape[:2]
    blocks = [node_feats.new_zeros(nodes, channels, block.ir.dim) for block in problem.irreps_out]
    for r, polynomial in enumerate(problem.polynomials):
        components = []
        for terms in polynomial.components:
            total = node_feats.new_zeros(nodes, channels)
            for value, indices in terms:
                product = node_feats[..., indices[0]]
                for i in indices[1:]:
                    product = product * node_feats[..., i]
                total = total + value * product
            components.append(total * coefficients[:, r])
        i_out = polynomial.i_out
        blocks[i_out] = blocks[i_out] + torch.stack(components, -1)
    return torch.cat([block.flatten(1) for block in blocks], 1)
