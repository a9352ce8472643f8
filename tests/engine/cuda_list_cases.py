"""Lists of edges on a CUDA device.

No file of tests by its name: test_cuda_lists.py runs it in a process of its own, where the device
is an emulated one, or a real one.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from .cuda_device import Device, program, structure

POINTER, LONG = ctypes.c_uint64, ctypes.c_longlong


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_by_sender_skip_dead_slots(dtype: str, rng: Any) -> None:
    """Rows of slots beyond r_max are not written by fused kernels: they may hold anything."""
    device = Device()
    slots, senders, nodes, width = 70, 6, 9, 32
    first_slot = 13  # of the chunk
    ends = np.sort(rng.integers(senders, size=slots))
    row_ptr = np.searchsorted(ends, np.arange(senders + 1)).astype(np.int32)
    sender = rng.permutation(nodes)[:senders].astype(np.int32)
    slot = (first_slot + rng.permutation(slots)).astype(np.int32)
    length = np.where(rng.random(first_slot + slots) < 0.4, 1e3, 2.0)
    live = length[slot] < 1e3
    rows = rng.normal(size=(slots, width)).astype(dtype)
    target = rng.normal(size=(nodes, width)).astype(dtype)
    want = target.astype(float)
    for k in np.flatnonzero(live):
        want[sender[ends[k]]] += rows[k]
    rows[~live] = np.nan
    out = device.upload(target)
    arguments = structure(
        rows=(POINTER, device.upload(rows)),
        target=(POINTER, out),
        sender=(POINTER, device.upload(sender)),
        row_ptr=(POINTER, device.upload(row_ptr)),
        slot=(POINTER, device.upload(slot)),
        length=(POINTER, device.upload(length)),
        senders=(LONG, senders),
        width=(LONG, width * np.dtype(dtype).itemsize // 16),
    )
    device.launch(program(dtype, ("conv.cuh",)), "sum_by_sender", 2, 256, arguments)
    found = device.download(out, target)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 if dtype == "float32" else 1e-13)
    device.release()
