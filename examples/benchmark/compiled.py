"""Models as their own packages compile them: MACE by torch.compile, NequIP ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from ase import Atoms

from mdcg.bench import checkpoint
from mdcg.bench.checkpoint import TorchStep
from mdcg.bench.model import Settings
from mdcg.patch import is_nequip
from mdcg.patch._frameworks import default_dtype
from mdcg.patch.nequip_files import nequip_state
from mdcg.patch.nequip_inputs import as_outputs

Run = Callable[[dict[str, torch.Tensor]], Mapping[str, Any]]
#: More atoms and edges than are timed.
_MOST = {"node": ("num_nodes", 10**7), "edge": ("num_edges", 10**9)}


class _CompiledStep(TorchStep):
    """The step of a model, by another function of the same inputs."""

    def __init__(self, model: torch.nn.Module, run: Run, settings: Settings, atoms: Atoms) -> None:
        super().__init__(model, settings, atoms)
        self._run = run

    def __call__(self) -> Mapping[str, Any]:
        return self._run(dict(self._batch))


def compiled(
    model: torch.nn.Module, folder: Path, settings: Settings
) -> Callable[[Atoms], TorchStep]:
    """Return what makes steps of a compiled model; it is compiled in the first step.

    Parameters
    ----------
    model : torch.nn.Module
        Of MACE, or of NequIP, whose layers a modifier may have replaced.
    folder : Path
        For the compiled model of NequIP.
    settings : Settings
    """
    run = _Exported(model, folder, settings) if is_nequip(model) else _mace(model, settings)
    return partial(_CompiledStep, model, run, settings)


def _mace(model: torch.nn.Module, settings: Settings) -> Run:
    """Compile as MACECalculator does with ``compile_mode="default"``."""
    prepare = import_module("mace.tools.compile").prepare
    extract = import_module("mace.tools.scripts_utils").extract_model
    with default_dtype(next(model.parameters()).dtype):
        network = prepare(extract)(model=model, map_location=settings.device)
    network = torch.compile(checkpoint.ready(network, None, settings.device), mode="default")
    options = {"compute_force": True, "compute_stress": settings.stress, "training": True}

    def run(batch: dict[str, torch.Tensor]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = network(batch, **options)
        return found

    return run


class _Exported:
    """A model of NequIP as ``nequip-compile --mode aotinductor --target ase`` compiles it."""

    def __init__(self, model: torch.nn.Module, folder: Path, settings: Settings) -> None:
        self._model, self._device = model, settings.device
        self._path = folder / f"{id(model)}.nequip.pt2"
        self._inputs: list[str] = []
        self._run: Run | None = None

    def _export(self, batch: dict[str, torch.Tensor]) -> Run:
        target = import_module("nequip.scripts._compile_utils").COMPILE_TARGET_DICT["ase"]
        dims = {
            name: torch.export.Dim(label, min=2, max=most) for name, (label, most) in _MOST.items()
        }
        self._inputs, outputs = target["input"], target["output"]
        export = import_module("nequip.utils.aot").aot_export_model
        with nequip_state():
            path = export(
                model=self._model,
                device=self._device,
                input_fields=self._inputs,
                output_fields=outputs,
                data=target["data_settings"](dict(batch)),
                batch_map=target["batch_map_settings"](dims),
                output_path=str(self._path),
            )
            wrapper = import_module("nequip.nn.compile").DictInputOutputWrapper
            loaded = torch._inductor.aoti_load_package(path)
            run: Run = wrapper(loaded, self._inputs, outputs)
        return run

    def __call__(self, batch: dict[str, torch.Tensor]) -> Mapping[str, Any]:
        if self._run is None:
            self._run = self._export(batch)
        return as_outputs(self._run({name: batch[name] for name in self._inputs}))
