"""The receiver order that compiled programs carry along, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mdcg.ops import operators  # noqa: F401  (defines the operators)
from mdcg.ops.cuda import graph_on_device
from mdcg.ops.graph import CudaGraph, packed_length, sorted_edges

SENDERS = 6


@pytest.fixture(autouse=True)
def no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sort, which is torch's, run on the CPU."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda stream: None))


def edges(count: int, receivers: int, index: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    sender = torch.randint(SENDERS, (count,), generator=generator)
    receiver = torch.randint(max(receivers, 1), (count,), generator=generator)
    return sender.to(index), receiver.to(index)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize(("count", "receivers"), [(0, 0), (0, 3), (1, 1), (7, 4), (8, 5), (90, 5)])
def test_packed_order_is_the_order(count: int, receivers: int, index: torch.dtype) -> None:
    sender, receiver = edges(count, receivers, index)
    graph = CudaGraph(sender, receiver, SENDERS, receivers)
    for i in range(receivers):
        mine = graph.order[graph.row_ptr[i] : graph.row_ptr[i + 1]]
        assert mine.tolist() == (receiver == i).nonzero().flatten().tolist()
    assert torch.equal(graph.sender, sender[graph.order.long()].int())
    packed = sorted_edges(sender, receiver, SENDERS, receivers)
    assert packed.dtype == torch.int32
    assert packed.shape == (packed_length(count, receivers),) != receiver.shape
    found = graph_on_device(torch.zeros(SENDERS, 1), packed, receiver, receivers)
    assert found is not None
    assert found.num_receivers == receivers
    for name in ("order", "sender", "row_ptr"):
        assert torch.equal(getattr(found, name), getattr(graph, name)), name
        assert getattr(found, name).storage_offset() % 4 == 0  # 16-byte words


def test_compilers_see_its_shape() -> None:
    with FakeTensorMode():
        index = torch.empty(37, dtype=torch.int64, device="cuda")
        packed = torch.ops.mdcg.sorted_edges(index, index, 5, 9)
    assert packed.shape == (packed_length(37, 9),)
    assert packed.dtype == torch.int32
    assert packed.device.type == "cuda"


@pytest.mark.parametrize(("sender", "receiver"), [(-1, 0), (SENDERS, 0), (0, -1), (0, 3)])
def test_indices_out_of_range_are_refused(sender: int, receiver: int) -> None:
    with pytest.raises(RuntimeError, match="an index that is not a node"):
        sorted_edges(torch.tensor([0, sender]), torch.tensor([0, receiver]), SENDERS, 3)
