"""The nn.Modules and the public functions' error messages."""

from __future__ import annotations

import copy
import doctest
import importlib
import inspect
import io
import pickle
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import mdcg
from mdcg import ConvTensorProduct, DeviceError, TensorProduct
from mdcg.ops import conv, tensor_product
from mdcg.ops.host import host_device
from mdcg.plan import plan_host
from mdcg.problem import ConvProblem

from ..processes import run_python
from .helpers import (
    compile_ahead,
    generator,
    mixed_problem,
    random_graph,
    random_operands,
    small_problem,
    usual_specs,
)

pytestmark = pytest.mark.compiler

PROBLEM = small_problem(dtype="float64")
SHARED = mixed_problem(dtype="float64", shared_weights=True)
WEIGHTLESS = ConvProblem.build("2x1o", "0e", "2x1o", [(0, 0, 0, "uvu", False)], dtype="float64")
GRAPH = random_graph(6, 6, 14)


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    forward = [spec for spec in usual_specs() if spec.kind == "forward"]
    compile_ahead([(PROBLEM, forward), (PROBLEM.with_dtype("float32"), forward[:1])])


def call(module: torch.nn.Module, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    x, y, w = (t.to(dtype) for t in random_operands(PROBLEM, 6, 14))
    out: torch.Tensor = module(x, y, w, GRAPH.sender, GRAPH.receiver)
    return out


def through_pickle(module: torch.nn.Module) -> Any:
    return pickle.loads(pickle.dumps(module))


def through_torch_save(module: torch.nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, through_pickle, through_torch_save])
def test_copies_work(copied: Any, used: bool) -> None:
    module = ConvTensorProduct(PROBLEM)
    want = call(ConvTensorProduct(PROBLEM))
    if used:
        call(module)
    assert torch.equal(call(copied(module)), want)


def test_plan_of_a_module_is_kept() -> None:
    plan = plan_host(PROBLEM, host_device()).with_changes(prefetch_edges=7)
    module = copy.deepcopy(ConvTensorProduct(PROBLEM, plan))
    assert module.plan == plan
    assert through_pickle(TensorProduct(PROBLEM, plan)).plan == plan


def test_modules_have_no_state() -> None:
    """Modules have no parameters or buffers, so a patched model keeps its state_dict."""
    for module in (ConvTensorProduct(PROBLEM), TensorProduct(PROBLEM)):
        assert module.state_dict() == {}
        assert list(module.parameters()) == []
        assert list(module.buffers()) == []
        assert PROBLEM.key() in repr(module)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_modules_follow_the_type_of_their_operands(dtype: torch.dtype) -> None:
    module = ConvTensorProduct(PROBLEM)
    out = call(module, dtype)
    assert out.dtype == dtype
    assert (out - call(module).to(dtype)).abs().max() < 1e-5
    x, y, w = (t.to(dtype) for t in random_operands(PROBLEM, 6, 6))
    assert TensorProduct(PROBLEM)(x, y, w).dtype == dtype


def test_modules_inside_a_model_train() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.radial = torch.nn.Linear(3, PROBLEM.weight_numel, dtype=torch.float64)
            self.product = ConvTensorProduct(PROBLEM)

        def forward(self, x: torch.Tensor, y: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
            return self.product(x, y, self.radial(r), GRAPH.sender, GRAPH.receiver)

    model = Model()
    gen = generator(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=gen))
    x, y, _ = random_operands(PROBLEM, 6, 14)
    r = torch.randn(14, 3, generator=gen, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(x, y, r).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert all(b < a for a, b in pairwise(losses))


def test_public_names() -> None:
    assert mdcg.conv is conv
    assert mdcg.tensor_product is tensor_product
    assert mdcg.ConvProblem is ConvProblem
    assert set(mdcg.__all__) <= set(dir(mdcg))
    with pytest.raises(AttributeError, match="module 'mdcg' has no attribute 'convolution'"):
        _ = mdcg.convolution


def test_public_names_have_docstrings() -> None:
    public = {name: getattr(mdcg, name) for name in mdcg.__all__ if name != "__version__"}
    for name, found in list(public.items()):
        for method in vars(found) if isinstance(found, type) else ():
            value = getattr(found, method)
            if method[0] != "_" and (callable(value) or isinstance(value, property)):
                public[f"{name}.{method}"] = value
    assert not [name for name, found in public.items() if not inspect.getdoc(found)]


@pytest.mark.parametrize("module", ["mdcg.problem.conv_problem", "mdcg.ops.functional"])
def test_examples_of_docstrings(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


def test_source_tree_without_compiled_core(tmp_path: Path) -> None:
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(Path(mdcg.__file__).parent, tmp_path / "mdcg", ignore=ignore)
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import mdcg
try:
    mdcg.conv
except mdcg.errors.MissingDependencyError as error:
    print(error)
"""
    said = run_python(code, str(tmp_path))
    assert said.startswith("mdcg was imported from")
    assert "which has no compiled core: start Python in another folder" in said


# -- error messages -------------------------------------------------------------------------------


def arguments(**changes: Any) -> dict[str, Any]:
    problem = changes.pop("problem", PROBLEM)
    x, y, w = random_operands(problem, 6, 14)
    return {
        "problem": problem,
        "node_feats": x,
        "edge_attrs": y,
        "weights": w,
        "sender": GRAPH.sender,
        "receiver": GRAPH.receiver,
    } | changes


def with_entry(index: torch.Tensor, position: int, value: int) -> torch.Tensor:
    index = index.clone()
    index[position] = value
    return index


X, Y, W = random_operands(PROBLEM, 6, 14)

WRONG_SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "features": (
        {"node_feats": X[:, :-1]},
        r"node_feats has shape \(6, 31\), expected \(n, 32\) for pro",
    ),
    "features 1d": ({"node_feats": X[0]}, r"node_feats has shape \(32,\), expected \(n, 32\)"),
    "attributes": ({"edge_attrs": Y[:, :3]}, r"edge_attrs has shape \(14, 3\), expected \(14, 4\)"),
    "fewer attributes": (
        {"edge_attrs": Y[:9]},
        r"edge_attrs has shape \(9, 4\), expected \(14, 4\)",
    ),
    "weights": (
        {"weights": W[:, :30]},
        r"weights has shape \(14, 30\), expected \(14, 32\) for problem [0-9a-f]{16}: was it",
    ),
    "one weight row": ({"weights": W[0]}, r"weights has shape \(32,\), expected \(14, 32\)"),
    "no weights": ({"weights": None}, "weights are missing, expected 32 per edge"),
    "shared weights missing": (
        {"problem": SHARED, "weights": None},
        "weights are missing, expected 106 per problem",
    ),
    "shared weights per edge": (
        {"problem": SHARED, "weights": torch.zeros(14, 106, dtype=torch.float64)},
        r"weights has shape \(14, 106\), expected \(106,\) for the shared weights of problem",
    ),
    "weights of a problem without": (
        {"problem": WEIGHTLESS, "weights": W},
        r"weights has shape \(14, 32\), but problem [0-9a-f]{16} has none: pass None",
    ),
    "index type": (
        {"sender": GRAPH.sender.short(), "receiver": GRAPH.receiver.short()},
        r"sender has shape \(14,\) and type torch.int16, expected \(n_edges,\) of torch.int32 or",
    ),
    "float index": (
        {"receiver": GRAPH.receiver.double()},
        "receiver has shape .* and type torch.float64",
    ),
    "index dimensions": (
        {"receiver": GRAPH.receiver[None]},
        r"receiver has shape \(1, 14\) and type torch.int64, expected \(n_edges,\)",
    ),
    "index lengths": (
        {"receiver": GRAPH.receiver[:-1]},
        r"sender is \(14,\) torch.int64, receiver \(13,\) torch.int64: expected equal shapes",
    ),
    "index types differ": ({"sender": GRAPH.sender.int()}, "expected equal shapes and types"),
    "negative receivers": ({"num_receivers": -5}, "num_receivers is -5, expected 0 or more"),
    "sender too large": (
        {"sender": with_entry(GRAPH.sender, 11, 6)},
        r"sender\[11\] is 6, expected 0 <= sender < 6",
    ),
    "sender negative": (
        {"sender": with_entry(GRAPH.sender, 0, -1)},
        r"sender\[0\] is -1, expected 0 <= sender < 6",
    ),
    "receiver too large": (
        {"receiver": with_entry(GRAPH.receiver, 13, 2**40)},
        r"receiver\[13\] is 1099511627776, expected 0 <= receiver < 6",
    ),
    "receiver too large for what is asked": (
        {"receiver": torch.full((14,), 3), "num_receivers": 3},
        r"receiver\[0\] is 3, expected 0 <= receiver < 3",
    ),
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_wrong_arguments(name: str) -> None:
    changes, message = WRONG_SHAPES[name]
    with pytest.raises(ValueError, match=message):
        conv(**arguments(**changes))


@pytest.mark.parametrize("name", ["node_feats", "edge_attrs", "weights"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex128, torch.int64])
def test_wrong_types(name: str, dtype: torch.dtype) -> None:
    good = arguments()
    message = f"{name} is {dtype}, expected torch.float64: convert it, or use problem.with_dtype"
    with pytest.raises(TypeError, match=message):
        conv(**good | {name: good[name].to(dtype)})


@pytest.mark.parametrize("name", ["node_feats", "edge_attrs", "weights", "sender", "receiver"])
def test_arguments_that_are_no_tensors(name: str) -> None:
    good = arguments()
    with pytest.raises(TypeError, match=f"{name} is a list, expected a torch.Tensor"):
        conv(**good | {name: good[name].tolist()})


@pytest.mark.parametrize("name", ["node_feats", "edge_attrs", "weights"])
def test_other_devices(name: str) -> None:
    good = arguments()
    with pytest.raises(
        DeviceError, match=r"is on meta, but kernels run on the CPU and on CUDA devices: move"
    ):
        conv(**good | {name: good[name].to("meta")})


@pytest.mark.parametrize("name", ["sender", "receiver"])
def test_indices_on_other_devices(name: str) -> None:
    good = arguments()
    with pytest.raises(ValueError, match=f"{name} is on meta, node_feats on cpu: move one"):
        conv(**good | {name: good[name].to("meta")})


def test_an_index_out_of_range_leaves_nothing_behind() -> None:
    bad = with_entry(GRAPH.sender, 3, 99)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"sender\[3\] is 99"):
            conv(**arguments(sender=bad))
    bad[3] = GRAPH.sender[3]
    assert torch.equal(conv(**arguments(sender=bad)), conv(**arguments()))


@pytest.mark.parametrize(
    ("x", "y", "w", "message"),
    [
        (
            X[:4],
            Y[:5],
            W[:1],
            r"leading dimensions of the operands are \(4,\), \(5,\), \(1,\): expected",
        ),
        (X[:, :5], Y[:6], W[:6], r"x1 has shape \(6, 5\), expected \(n, 32\)"),
        (X, Y[:6, :2], W[:6], r"x2 has shape \(6, 2\), expected \(6, 4\)"),
        (X, Y[:6], W[:6, :2], r"weights has shape \(6, 2\), expected \(6, 32\)"),
        (X, Y[:6], None, "weights are missing"),
    ],
)
def test_wrong_arguments_of_the_batched_product(
    x: torch.Tensor, y: torch.Tensor, w: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tensor_product(PROBLEM, x, y, w)


def test_default_device_does_not_matter() -> None:
    want = conv(**arguments())
    with torch.device("meta"):
        out = conv(**arguments(problem=PROBLEM, node_feats=X, edge_attrs=Y, weights=W))
    assert out.device.type == "cpu"
    assert torch.equal(out, want)
