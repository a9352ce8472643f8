"""Other programs that evaluate whole models: what they need, and one evaluation in each."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from ase import Atoms
from ase.stress import voigt_6_to_full_3x3_stress

from mdcg.bench import checkpoint
from mdcg.bench.checkpoint import TorchStep
from mdcg.bench.model import Loader, MakeStep, Settings
from mdcg.bench.systems import make_system
from mdcg.errors import DeviceError, installed_version
from mdcg.patch import is_nequip, model_info
from mdcg.patch._frameworks import default_dtype
from mdcg.patch.models import ModelInfo
from mdcg.patch.nequip_files import nequip_state
from mdcg.patch.sevennet_files import compute_in


class Needs(NamedTuple):
    """What a program needs: modules, a GPU or not, and models of these packages."""

    modules: tuple[str, ...]
    models: tuple[str, ...]
    gpu: bool = True


#: `flashtp` is SevenNet with the kernels of FlashTP, `aoti` is NequIP compiled by
#: ``nequip-compile --mode aotinductor``, `aoti-oeq` with the kernels of OpenEquivariance.
PEERS = {
    "cueq": Needs(
        ("cuequivariance_torch", "cuequivariance_ops_torch"), ("MACE", "NequIP", "SevenNet")
    ),
    "oeq": Needs(("openequivariance",), ("MACE", "NequIP", "SevenNet")),
    "flashtp": Needs(("flashTP_e3nn",), ("SevenNet",)),
    "symmetrix": Needs(("symmetrix",), ("MACE",), gpu=False),
    "fastmace": Needs(("fastmace",), ("MACE",)),
    "aoti": Needs(("nequip",), ("NequIP",), gpu=False),
    "aoti-oeq": Needs(("nequip", "openequivariance"), ("NequIP",)),
}
_LARGE = 500_000  # atoms
# NequIP's and SevenNet's own names of accelerations
_NEQUIP_MODIFIERS = {"cueq": "enable_CuEquivariance", "oeq": "enable_OpenEquivariance"}
_SEVENNET_OPTIONS = {"cueq": "enable_cueq", "oeq": "enable_oeq", "flashtp": "enable_flash"}


_PACKAGES = {"mace": "MACE", "nequip": "NequIP", "sevennet": "SevenNet", "nequix": "Nequix"}


def missing(impl: str, device: str) -> str | None:
    """Return why an implementation cannot run here, or None."""
    if impl not in PEERS:
        return None
    needs = PEERS[impl]
    if absent := [name for name in needs.modules if find_spec(name) is None]:
        return f"{', '.join(absent)} is not installed"
    if needs.gpu and device == "cpu":
        return "it has kernels for CUDA devices only"
    if impl == "symmetrix":
        backends = {one["backend"] for one in import_module(impl).available_backends()}
        if device not in backends:
            return "its package for this GPU, such as symmetrix-xl-cuda13-sm90, is not installed"
    if impl == "fastmace" and not (installed_version("e3nn") or "").startswith("0.4."):
        return f"it needs e3nn 0.4.4, but {installed_version('e3nn')} is installed"
    return None


def unsuited(impl: str, model: torch.nn.Module) -> str | None:
    """Return why an implementation is not for a model, or None."""
    info = model_info(model)
    package = _PACKAGES[info.framework]
    if impl in PEERS and package not in PEERS[impl].models:
        return f"for {', '.join(PEERS[impl].models)} models only"
    if impl == "fastmace" and info.dtype != torch.float32:
        return "it is timed in float32 only"
    return None


def tell_skipped(reasons: Mapping[str, str | None]) -> None:
    """Print what is not measured, and why."""
    skipped = [f"{name}: {why}" for name, why in reasons.items() if why is not None]
    if skipped:
        print(f"not measured: {'; '.join(skipped)}")


def loaders(
    model: torch.nn.Module, name: str, base: Path, settings: Settings, symbols: Sequence[str]
) -> dict[str, Loader]:
    """Return functions that make the implementations in :data:`PEERS`, without FastMACE.

    `name` is the file of the model, or how the benchmark calls it. Converted files have the name
    `base` and a suffix; those that exist are used. `symbols` are the elements of the structures.
    """

    def layers(impl: str) -> MakeStep:
        if model_info(model).framework == "sevennet":
            made = accelerated_sevennet(impl, name, model, settings.device)
        else:
            made = converted(impl, model, settings.device)
        return partial(TorchStep, made, settings)

    def compiled(impl: str) -> MakeStep:
        source = model if impl == "aoti" else converted("oeq", model, settings.device)
        return compiled_nequip(source, Path(f"{base}.{impl}.nequip.pt2"), settings)

    def symmetrix() -> MakeStep:
        file = symmetrix_file(model, Path(f"{base}.json"), symbols)
        dtype = str(model_info(model).dtype).removeprefix("torch.")
        make = partial(symmetrix_calculator, file, settings.device, dtype, settings.threads)
        return partial(CalculatorStep, make, model_info(model), settings)

    found: dict[str, Loader] = {"symmetrix": symmetrix}
    found |= {impl: partial(layers, impl) for impl in _SEVENNET_OPTIONS}
    return found | {impl: partial(compiled, impl) for impl in ("aoti", "aoti-oeq")}


def converted(impl: str, model: torch.nn.Module, device: str) -> torch.nn.Module:
    """Convert a model to another package's layers, with mace's converter or NequIP's modifier."""
    if is_nequip(model):
        with nequip_state():
            modify = import_module("nequip.model.modify_utils").modify
            result = modify(copy.deepcopy(model), [{"modifier": _NEQUIP_MODIFIERS[impl]}])
    else:
        dtype = next(model.parameters()).dtype
        with default_dtype(dtype):  # the converter sets it
            converter = import_module(f"mace.cli.convert_e3nn_{impl}")
            result = converter.run(copy.deepcopy(model), device=device).to(dtype)
    return checkpoint.ready(result, None, device)


def accelerated_sevennet(
    impl: str, file: str, model: torch.nn.Module, device: str
) -> torch.nn.Module:
    """Build the model of a checkpoint as SevenNet's calculator does with ``enable_cueq`` and such.

    `model` is that of the same file without such kernels, and gives the dtype.
    """
    dtype = model_info(model).dtype
    with default_dtype(dtype), redirect_stdout(sys.stderr):
        checkpoint_of = import_module("sevenn.checkpoint").SevenNetCheckpoint
        result = checkpoint_of(file).build_model(**{_SEVENNET_OPTIONS[impl]: True}).to(dtype)
    compute_in(result, dtype)
    return checkpoint.ready(result, None, device)


# ---- NequIP, compiled ----


def compiled_nequip(model: torch.nn.Module, file: Path, settings: Settings) -> MakeStep:
    """Compile a model as ``nequip-compile --mode aotinductor --target ase`` does."""
    target = import_module("nequip.scripts._compile_utils").COMPILE_TARGET_DICT["ase"]
    fields = target["input"], target["output"]
    if not file.is_file():
        dim = torch.export.Dim
        shapes = {"graph": dim.STATIC, "node": dim("nodes", min=2), "edge": dim("edges", min=2)}
        example = dict(TorchStep(model, settings, make_system("water", 24)).inputs)
        with nequip_state():
            export = import_module("nequip.utils.aot").aot_export_model
            export(model, settings.device, *fields, example, shapes, str(file))
    program: Any = torch._inductor.aoti_load_package(str(file))
    run = import_module("nequip.nn.compile").DictInputOutputWrapper(program, *fields)

    def make(atoms: Atoms) -> TorchStep:
        step = TorchStep(model, settings, atoms)
        step.model = run
        return step

    return make


# ---- ASE calculators of other programs ----


class CalculatorStep:
    """An ASE calculator; a call evaluates positions of the host, without ASE's own bookkeeping."""

    num_edges = None  # it does not say
    own_bytes = 0

    def __init__(
        self, make: Callable[[int], Any], info: ModelInfo, settings: Settings, atoms: Atoms
    ) -> None:
        self.info, self._calculator, self._atoms = info, make(len(atoms)), atoms
        self._wanted = ["energy", "forces", *(["stress"] if settings.stress else [])]

    def __call__(self) -> dict[str, Any]:
        """Return energy, forces and, if it is wanted, stress, in eV and Å."""
        self._calculator.calculate(self._atoms, self._wanted, ["positions"])
        found = {name: self._calculator.results[name] for name in self._wanted}
        if "stress" in found:
            found["stress"] = voigt_6_to_full_3x3_stress(found["stress"])
        return found


def save(model: torch.nn.Module, file: Path) -> Path:
    """Write a model of the host as a checkpoint for other programs."""
    torch.save(copy.deepcopy(model).cpu(), file)
    return file


def symmetrix_file(model: torch.nn.Module | Path, file: Path, symbols: Sequence[str]) -> Path:
    """Convert a model or a checkpoint with Symmetrix-XL's own converter, unless the file exists.

    With all elements of a published model it takes half a minute and 300 MB, which every calculator
    reads, so the file has those of the structures only.
    """
    if not file.is_file():
        source = model if isinstance(model, Path) else save(model, Path(f"{file}.model"))
        unfinished = Path(f"{file}.partial")
        with redirect_stdout(sys.stderr):
            convert = import_module("symmetrix.cli.extract_mace").main
            convert(["-m", str(source), "-o", str(unfinished), "-s", *symbols])
        unfinished.replace(file)
    return file


def symmetrix_calculator(
    file: Path, device: str, dtype: str, threads: int | None, num_atoms: int
) -> Any:
    """Return Symmetrix-XL's calculator, which makes kernels at first use."""
    package = import_module("symmetrix")
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # its OpenMP reads that when it is loaded
    package.load_backend("cpu" if device == "cpu" else None)
    chosen = package.selected_backend()
    if chosen["backend"] != device:
        raise DeviceError(f"symmetrix-xl has no package for this {device} device: install it")
    # its mode for the largest systems, which GPUs have
    fixed = device == "cuda" and num_atoms > _LARGE
    return package.Symmetrix(str(file), dtype=dtype, allow_fixed_workspace=fixed)
