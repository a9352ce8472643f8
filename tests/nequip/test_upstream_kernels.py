"""Cases that NequIP uses to test kernels of accelerators (``test_tp_scatter_kernel.py``).

Value and gradients of a patched layer against the layer as it was.
"""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch
from e3nn import o3

from mdcg.patch import patch_model
from mdcg.patch.nequip_files import nequip_state

FEATURES = ("4x0e+3x1o+2x2e", "2x0e+2x1o+2x2e", "8x0e+8x2e+8x1o")
HARMONICS = ("0e+1o", "0e+1o+2e")
OUTPUTS = ("0e+1o+2e", "2x0e+2x1o+2x2e", "24x0e+32x1o+16x1e+16x2o+32x2e")
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5}
NODES, EDGES = 8, 15


def scatter_layer(features: str, harmonics: str, allowed: str, dtype: torch.dtype) -> Any:
    """Return NequIP's layer with the paths of its interaction block."""
    with nequip_state():
        from nequip.nn._tp_scatter_base import TensorProductScatter
        from nequip.utils import torch_default_dtype

        first, second = o3.Irreps(features), o3.Irreps(harmonics)
        blocks, paths = [], []
        for (i, (mul, ir)), (j, (_, edge)) in product(enumerate(first), enumerate(second)):
            for out in ir * edge:
                if out in o3.Irreps(allowed):
                    paths.append((i, j, len(blocks)))
                    blocks.append((mul, out))
        mid, place, _ = o3.Irreps(blocks).sort()
        with torch_default_dtype(dtype):
            return TensorProductScatter(
                first, second, mid, [(i, j, place[k], "uvu", True) for i, j, k in paths]
            )


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], ids=["cpu", "cuda"]
)
@pytest.mark.parametrize(
    ("features", "harmonics", "allowed", "dtype"),
    [
        (FEATURES[0], HARMONICS[1], OUTPUTS[0], torch.float64),
        (FEATURES[1], HARMONICS[0], OUTPUTS[1], torch.float32),
        (FEATURES[2], HARMONICS[0], OUTPUTS[2], torch.float64),
        (FEATURES[2], HARMONICS[1], OUTPUTS[1], torch.float32),
    ],
)
def test_kernel(
    features: str, harmonics: str, allowed: str, dtype: torch.dtype, device: str
) -> None:
    stock = scatter_layer(features, harmonics, allowed, dtype).to(device)
    block = torch.nn.Module()
    block.tp_scatter = copy.deepcopy(stock)
    assert len(patch_model(block).patched) == 1
    generator = torch.Generator().manual_seed(8)

    def draw(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return values.to(device, dtype)

    receiver, sender = torch.randint(NODES, (2, EDGES), generator=generator).to(device)
    operands = [
        draw(NODES, stock.tp.irreps_in1.dim),
        draw(EDGES, stock.tp.irreps_in2.dim),
        draw(EDGES, stock.tp.weight_numel),
    ]
    cotangent = draw(NODES, stock.tp.irreps_out.dim)
    found = []
    for layer in (stock, block.tp_scatter):
        leaves = [value.clone().requires_grad_() for value in operands]
        out = layer(*leaves, receiver, sender)
        found.append([out, *torch.autograd.grad(out, leaves, cotangent)])
    for want, got in zip(*found, strict=True):
        error = (got - want).detach().abs().max() / want.detach().abs().max()
        assert float(error) < LIMITS[dtype]
