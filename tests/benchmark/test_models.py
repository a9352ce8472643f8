"""Models with random weights, and their implementations."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from ase import Atoms
from benchmark import dynamics, models, programs

from mdcg.bench.checkpoint import TorchStep, exact, load, ready
from mdcg.bench.model import Settings, measure
from mdcg.bench.systems import make_system


def test_random_model_leaves_no_trace() -> None:
    pytest.importorskip("mace", exc_type=ImportError)
    dtype, state = torch.get_default_dtype(), torch.get_rng_state()
    changes = {"max_ell": 1, "correlation": 1, "atomic_numbers": [1, 8]}
    one, two = (models.build_mace("4x0e", "float64", **changes) for _ in range(2))
    assert torch.get_default_dtype() == dtype
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
        assert value.dtype == torch.float64 or not value.is_floating_point()


@pytest.mark.slow
# NequIP warns with advice on settings
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("framework", ["mace", "nequip", "sevenn", "nequix", "graph_longrange"])
def test_all_implementations_agree(framework: str, tmp_path: Path) -> None:
    """All implementations that run on a CPU agree on a small model."""
    pytest.importorskip(framework, exc_type=ImportError)
    if framework == "mace":
        changes = {"max_ell": 1, "correlation": 2, "atomic_numbers": [1, 8], "r_max": 4.0}
        built = models.build_mace("8x0e+8x1o", "float32", **changes)
    elif framework == "nequip":
        built = models.build("nequip-s")
    elif framework == "sevenn":
        from ..sevennet.conftest import build_model, config_of

        built = build_model(config_of(), torch.float32)
    elif framework == "graph_longrange":  # a model with a charge and a spin
        from ..mace.conftest import build_model as build_polar
        from ..mace.test_polar import model_of

        built = model_of(build_polar, dtype=torch.float32)
    else:
        from ..nequix.test_nequix import config_of, write_file

        built = load(write_file(tmp_path / "m.pt", config_of()))
    settings = Settings(stress=True, repeats=1)
    model = ready(built, None, "cpu")
    loaders = models.loaders(model, "m.pt", tmp_path / "a", settings, ["H", "O"])
    chosen = {
        name: loaders[name]
        for name in models.IMPLS
        # these compile for minutes
        if name not in ("symmetrix", "aoti")
        and not (models.missing(name, "cpu") or models.unsuited(name, model))
    }
    (found,) = measure(chosen, [make_system("water", 24)], settings, exact(model, settings))
    assert {"original", "patched", "engine"} <= set(chosen)
    if framework == "nequix":
        assert found["refused"][0]["reason"].startswith("layers of Nequix models cannot be patched")
        del chosen["patched"], found["refused"][0]
    assert found["refused"] == []
    assert [row["impl"] for row in found["rows"]] == list(chosen)
    for row in found["rows"]:
        # forces of the model with a charge reach many eV/Å
        limit = 5e-4 if framework == "graph_longrange" else 1e-4
        assert row["forces_difference_float64"] < limit
        assert row["stress"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_nequip_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NequIP's own compiler gets its own fields; the file is used again."""
    pytest.importorskip("nequip", exc_type=ImportError)
    aot, wrappers = import_module("nequip.utils.aot"), import_module("nequip.nn.compile")
    model, settings = ready(models.build("nequip-s"), None, "cpu"), Settings(stress=True)
    compiled: list[Any] = []

    def export(*arguments: Any) -> None:
        compiled.append(wrappers.ListInputOutputWrapper(arguments[0], *arguments[2:4]))
        assert set(arguments[2]) <= set(arguments[4])
        assert set(arguments[5]) == {"graph", "node", "edge"}
        Path(arguments[6]).write_text("program")

    def load(path: str) -> Any:
        assert Path(path).read_text() == "program"

        @torch.inference_mode(False)
        def run(inputs: list[torch.Tensor]) -> Any:
            return compiled[0](*(tensor.clone() for tensor in inputs))

        return run

    monkeypatch.setattr(aot, "aot_export_model", export)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", load)
    for count in (24, 81):
        atoms = make_system("water", count)
        make = models.loaders(model, "nequip-s", tmp_path / "a", settings, ["H", "O"])["aoti"]()
        got, want = make(atoms)(), TorchStep(model, settings, atoms)()
        for name in ("forces", "stress"):
            torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-5)
    assert len(compiled) == 1


def test_sevennet_is_built_with_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SevenNet builds the accelerated model from the file, in the model's dtype."""
    pytest.importorskip("sevenn", exc_type=ImportError)
    from ..sevennet.conftest import config_of, write_checkpoint

    checkpoint = import_module("sevenn.checkpoint").SevenNetCheckpoint
    asked: list[dict[str, bool]] = []
    build = checkpoint.build_model
    monkeypatch.setattr(
        checkpoint, "build_model", lambda self, **options: asked.append(options) or build(self)
    )
    file, settings = write_checkpoint(tmp_path / "m.pth", config_of()), Settings()
    model = ready(load(str(file)), "float64", "cpu")
    found = models.loaders(model, str(file), tmp_path / "a", settings, ["H", "O"])
    asked.clear()
    atoms = make_system("water", 24)
    for impl in ("cueq", "oeq", "flashtp"):
        step = found[impl]()(atoms)
        assert step.info.dtype == torch.float64
        want = TorchStep(model, settings, atoms)()["forces"]
        torch.testing.assert_close(step()["forces"], want, rtol=1e-5, atol=1e-6)
    assert asked == [{"enable_cueq": True}, {"enable_oeq": True}, {"enable_flash": True}]
    known = inspect.signature(build).parameters
    assert all(name in known for one in asked for name in one)


def test_who_is_for_which_models() -> None:
    pytest.importorskip("mace", exc_type=ImportError)
    model = models.build_mace("4x0e", "float64", max_ell=1, correlation=1, atomic_numbers=[1, 8])
    assert programs.unsuited("aoti", model) == "for NequIP models only"
    assert programs.unsuited("flashtp", model) == "for SevenNet models only"
    assert programs.unsuited("fastmace", model) == "it is timed in float32 only"
    assert programs.unsuited("symmetrix", model) is None
    assert programs.unsuited("fastmace", model.float()) is None


def test_fastmace_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """FastMACE has a row at each size, until its memory would not do."""
    tried: list[tuple[int, int]] = []

    def measure(program: str, run: Any) -> dict[str, Any]:
        tried.append((len(run.atoms), run.steps))
        if len(run.atoms) == 24:
            raise RuntimeError("PlanRefused")
        seconds = dict.fromkeys(("median", "quartile1", "quartile3"), 0.5)
        peak = len(run.atoms) * 10**9
        return {"impl": program, "seconds": seconds, "stress": False, "peak_bytes": peak}

    monkeypatch.setattr(dynamics, "measure", measure)
    monkeypatch.setattr("mdcg.bench.model.total_bytes", lambda device: 5 * 10**12)
    systems = [Atoms("H" * count) for count in (24, 1000, 4000, 6000)]
    original = {"impl": "original", "seconds": {"median": 2.0, "quartile1": 2.0, "quartile3": 2.0}}
    sections: list[dict[str, Any]] = [
        {"atoms": len(each), "rows": [{**original, "peak_bytes": None}], "refused": []}
        for each in systems
    ]
    found = list(models._beside_fastmace(sections, systems, Path("a.model"), "cuda"))
    assert tried == [(24, 1000), (1000, 1000), (4000, 500)]
    assert [len(one["rows"]) for one in found] == [1, 2, 2, 1]
    assert found[1]["rows"][1]["speedup"] == 4.0
    reasons = [one["refused"][0]["reason"] for one in (found[0], found[3])]
    assert reasons[0] == "RuntimeError: PlanRefused"
    assert reasons[1] == "out of memory: some 6000 GB, from what fewer atoms took"
