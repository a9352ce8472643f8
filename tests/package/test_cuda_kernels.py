"""CUDA kernels of packages: their entries."""

from __future__ import annotations

from mdcg.package.cuda_kernels import cuda_passes

from ..engine.problems import build


def test_equal_layers_share_programs() -> None:
    problem = build("4x0e", "1x0e+1x1o", "4x0e+4x1o", "float64")
    for radial, kinds in (
        ({"layers": []}, {"table_forward", "table_backward"}),
        ({"layers": [], "sender": "x"}, {"forward", "backward"}),  # reads features of senders
        ({"layers": [{"activation": "relu"}]}, {"forward", "backward"}),
    ):
        layer = {"type": "conv", "problem": problem.to_json(), "x": "x", "radial": radial}
        entries, texts = cuda_passes([layer] * 2, ())
        entries = [entry for entry in entries if entry["target"] == "sm_80"]
        assert [entry["layer"] for entry in entries] == [0, 0, 1, 1]
        assert {entry["pass"] for entry in entries} == kinds
        assert entries[0]["programs"] == entries[2]["programs"]
        assert set(texts) == {name for entry in entries for name in entry["programs"]}


def test_kernels_for_devices_with_more_shared_memory() -> None:
    """Devices with more shared memory have their own backward kernels for features of degree 2."""
    out = "128x0e+128x1o+128x1o+128x2e+128x2e+128x3o+128x3o"
    problem = build("128x2e", "1x0e+1x1o+1x2e+1x3o", out, "float32")
    radial = {"sender": None, "layers": [], "table": {}}
    layer = {"type": "conv", "problem": problem.to_json(), "x": "x", "radial": radial}
    entries, _ = cuda_passes([layer], ())
    of_backward = [entry for entry in entries if entry["pass"] == "table_backward"]
    assert [entry["target"] for entry in of_backward] == ["sm_80", "sm_90", "sm_120"]
    assert of_backward[0]["programs"] == of_backward[2]["programs"]
    assert of_backward[0]["programs"] != of_backward[1]["programs"]
    shared = [max(each["shared_bytes"] for each in entry["entries"]) for entry in of_backward]
    assert shared[0] == shared[2] < 99 * 1024 < shared[1]
    assert all(entry["target"] == "sm_80" for entry in entries if entry not in of_backward)
