"""Operators by their definition, in plain torch: the reference for tests."""

from __future__ import annotations

import torch

from ..problem import ConvProblem, MulIrrep, SymmetricContractionProblem


def _block(rows: torch.Tensor, block: MulIrrep, layout: str) -> torch.Tensor:
    """Return a block of feature rows as (n_rows, mul, 2l+1)."""
    columns = rows[:, block.offset : block.offset + block.dim]
    if layout == "mul_ir":
        return columns.reshape(rows.shape[0], block.mul, block.ir.dim)
    return columns.reshape(rows.shape[0], block.ir.dim, block.mul).transpose(1, 2)


def tensor_product_reference(
    problem: ConvProblem, x1: torch.Tensor, x2: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the product of every row by its definition.

    The type of the operands is used, not that of the problem. `weights` has a row for each row of
    the operands, or is one row for all.
    """
    rows = x1.shape[0]
    out = [x1.new_zeros(rows, block.mul, block.ir.dim) for block in problem.irreps_out]
    for path, offset in zip(problem.paths, problem.weight_offsets, strict=True):
        a = _block(x1, problem.irreps_in1[path.i_in1], problem.layout)
        b = _block(x2, problem.irreps_in2[path.i_in2], "mul_ir")
        w3j = torch.tensor(problem.w3j(problem.degrees(path)), dtype=x1.dtype, device=x1.device)
        shape = problem.weight_shape(path)
        subscripts = "u" if path.mode == "uvu" else "w"
        if path.has_weight:
            assert weights is not None
            size = 1
            for n in shape:
                size *= n
            w = weights if weights.dim() == 2 else weights[None]
            w = w[:, offset : offset + size]
            w = w.reshape(w.shape[0], *shape).expand(rows, *shape)
            indices = "zuv" if path.mode == "uvu" else "zuvw"
            term = torch.einsum(f"{indices},abc,zua,zvb->z{subscripts}c", w, w3j, a, b)
        else:
            term = torch.einsum("abc,zua,zvb->zuc", w3j, a, b)
        out[path.i_out] = out[path.i_out] + path.path_weight * term
    if not out:
        return x1.new_zeros(rows, 0)
    if problem.layout == "ir_mul":
        out = [block.transpose(1, 2) for block in out]
    return torch.cat([block.flatten(1) for block in out], dim=1)


def conv_reference(
    problem: ConvProblem,
    node_feats: torch.Tensor,
    edge_attrs: torch.Tensor,
    weights: torch.Tensor | None,
    sender: torch.Tensor,
    receiver: torch.Tensor,
    *,
    num_receivers: int | None = None,
) -> torch.Tensor:
    """Return the summed messages by definition; parameters as in :func:`mdcg.ops.conv`."""
    rows = node_feats.shape[0] if num_receivers is None else num_receivers
    messages = tensor_product_reference(problem, node_feats[sender.long()], edge_attrs, weights)
    out = messages.new_zeros(rows, messages.shape[1])
    return out.index_add(0, receiver.long(), messages)


def symmetric_contraction_reference(
    problem: SymmetricContractionProblem,
    node_feats: torch.Tensor,
    coefficients: torch.Tensor,
    node_attrs: torch.Tensor | None = None,
) -> torch.Tensor:
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
