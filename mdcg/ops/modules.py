"""The operators as ``nn.Module``s."""

from __future__ import annotations

import torch

from ..plan import CudaPlan, HostPlan
from ..problem import ConvProblem
from .functional import conv, tensor_product


class _ProblemModule(torch.nn.Module):
    """Base of modules with a problem and a plan, which copies and pickles contain as plain data."""

    def __init__(self, problem: ConvProblem, plan: HostPlan | CudaPlan | None = None) -> None:
        super().__init__()
        self.problem = problem
        self.plan = plan

    def _problem_for(self, like: torch.Tensor) -> ConvProblem:
        """Return the problem in the operands' type: ``.to()`` has no effect without parameters."""
        dtype = str(like.dtype).removeprefix("torch.")
        return self.problem.with_dtype(dtype) if dtype in ("float32", "float64") else self.problem

    def extra_repr(self) -> str:
        """Return the problem in one line."""
        return str(self.problem)


class TensorProduct(_ProblemModule):
    """Batched tensor product with weights as an argument.

    Parameters
    ----------
    problem : ConvProblem
        float32 and float64 operands both work, whatever the problem's own dtype.
    plan : HostPlan or CudaPlan, optional
    """

    def forward(
        self, x1: torch.Tensor, x2: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the product of every row; see :func:`mdcg.ops.tensor_product`."""
        return tensor_product(self._problem_for(x1), x1, x2, weights, plan=self.plan)


class ConvTensorProduct(_ProblemModule):
    """Tensor product on edges, summed on receivers.

    Parameters
    ----------
    problem : ConvProblem
        float32 and float64 operands both work, whatever the problem's own dtype.
    plan : HostPlan or CudaPlan, optional
    """

    def forward(
        self,
        node_feats: torch.Tensor,
        edge_attrs: torch.Tensor,
        weights: torch.Tensor | None,
        sender: torch.Tensor,
        receiver: torch.Tensor,
        num_receivers: int | None = None,
    ) -> torch.Tensor:
        """Return the summed messages; see :func:`mdcg.ops.conv`."""
        return conv(
            self._problem_for(node_feats),
            node_feats,
            edge_attrs,
            weights,
            sender,
            receiver,
            num_receivers=num_receivers,
            plan=self.plan,
        )
