"""Convert a loaded model or a checkpoint to a package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import CheckpointError, PackageError, UnsupportedProblemError
from ..problem.text import dtype_of
from .builder import Builder
from .file import Package, file_sha256
from .inputs import refuse_unknown
from .les import set_constants


def how_in_place(model: Any) -> str:
    """Return how a model is patched in place."""
    from ..patch import is_nequip, is_sevennet

    if is_sevennet(model):
        return "in a program, with mdcg.patch_model"
    suffixes = ".pt, or .nequip.zip for a package" if is_nequip(model) else ".model"
    return f"name the output {suffixes}"


@dataclass(frozen=True)
class ConversionOptions:
    """How a checkpoint is converted.

    Parameters
    ----------
    types : tuple of str, optional
        Elements to convert. Default: all that the model knows.
    head : str, optional
        Required if the model has several: SevenNet's modal.
    dtype : {"float32", "float64"}, optional
        Default: the model's.
    graph_fields : tuple of (str, number)
        Defaults of inputs that the model reads once per structure, such as a charge. The others
        must be given in each evaluation.
    radial : {"table", "exact"}, optional
        Default: tables, if their error is below rounding.
    dispersion : str, optional
        Functional whose D3 dispersion the package holds beside the network, such as ``"pbe"``.
    les_factor : float, optional
        For NequIP-LES: norm factor of the long-range sum in eV Å/e². Default: that of the installed
        package ``les``, because checkpoints do not hold it.
    les_own_part : {"kept", "removed"}, optional
        For NequIP-LES: whether the interaction of each charge with itself is part of the energy.
        Default: as in the installed package ``les``.
    """

    types: tuple[str, ...] | None = None
    head: str | None = None
    dtype: str | None = None
    graph_fields: tuple[tuple[str, float], ...] = ()
    radial: str | None = None
    dispersion: str | None = None
    les_factor: float | None = None
    les_own_part: str | None = None


def convert_checkpoint(path: str | Path, options: ConversionOptions | None = None) -> Package:
    """Convert a checkpoint of MACE, NequIP, SevenNet or Nequix.

    Parameters
    ----------
    path : path
        Loading a pickle can run code: convert files you trust only.
    options : ConversionOptions, optional

    Returns
    -------
    Package

    Raises
    ------
    CheckpointError
        The file cannot be read.
    UnsupportedProblemError
        Packages do not support a part of the model.
    ValueError
        An element or a head that the model does not know.
    """
    path = Path(path)
    model, digest = load_with_digest(path)
    return convert_model(model, options, source=(path.name, digest))


def load_with_digest(path: Path) -> tuple[Any, str]:
    """Return the model of a checkpoint and the SHA-256 of the file, which must not change."""
    from ..patch import load_model

    def state() -> tuple[int, int, int]:
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    before = state() if path.exists() else None
    model = load_model(path)  # refuses other files before the whole file is read
    digest = file_sha256(path)
    if state() != before:
        raise CheckpointError(f"{path} changed while it was read: run the command again")
    return model, digest


def convert_model(
    model: Any, options: ConversionOptions | None = None, *, source: tuple[str, str] | None = None
) -> Package:
    """Convert a loaded model, which stays as it is; see :func:`convert_checkpoint`.

    `source` is the name and the SHA-256 of the file that the model came from.
    """
    import torch

    from ..patch import copy_model, is_nequip, is_patched, model_info, unpatch_model
    from ..patch.models import copy_in_dtype

    options = options or ConversionOptions()
    if options.dtype is not None:  # one name per type, so that equal options make equal packages
        options = replace(options, dtype=dtype_of(options.dtype))
    if is_patched(model):
        model = copy_model(model)
        unpatch_model(model)
    nequip = is_nequip(model)
    if not nequip:
        model = _merged(model)
    if (options.les_factor, options.les_own_part) != (None, None):
        model = copy_model(model)
        set_constants(model, options.les_factor, options.les_own_part)
    info: Any = model_info(model)
    dtype = options.dtype or str(info.dtype).removeprefix("torch.")
    if dtype not in ("float32", "float64"):
        raise UnsupportedProblemError(
            f"the model is {dtype}, expected float32 or float64: choose one with --dtype"
        )
    if info.framework in ("sevennet", "nequix"):
        model = copy_in_dtype(model, torch.float64)  # with 3j symbols that are not rounded
    elif dtype == "float64" and info.dtype != torch.float64 and not nequip:
        model = copy_model(model).double()  # its constants need every digit
    head = info.head_index(options.head)
    columns = _columns(info.symbols, options.types)
    builder = Builder(len(columns), dtype, exact=options.radial == "exact")
    try:
        if nequip:
            from .nequip import build_nequip

            build_nequip(model, builder, columns, dict(options.graph_fields))
        elif info.framework == "sevennet":
            from .sevennet import build_sevennet

            refuse_unknown(dict(options.graph_fields), ())
            build_sevennet(model, builder, [info.atomic_numbers[c] for c in columns], head)
        elif info.framework == "nequix":
            from .nequix import build_nequix

            refuse_unknown(dict(options.graph_fields), ())
            build_nequix(model, builder, columns)
        else:
            from .mace import build_mace

            build_mace(model, builder, columns, head, dict(options.graph_fields))
    except UnsupportedProblemError as error:
        raise UnsupportedProblemError(f"{error}{_otherwise(model)}") from error
    program, tensors = builder.finish()
    type_names = [info.symbols[column] for column in columns]
    if options.dispersion is not None:
        from .dispersion import d3_data

        program["dispersion"], data = d3_data(options.dispersion, type_names)
        tensors |= data
    manifest = {
        "mdcg_version": __version__,
        "architecture": info.framework,
        "model_class": info.model_class,
        "type_names": type_names,
        "atomic_numbers": None if nequip else [info.atomic_numbers[c] for c in columns],
        "r_max": info.r_max,
        "dtype": dtype,
        "energy_unit": "eV",
        "length_unit": "angstrom",
        "head": None if nequip else info.heads[head],
        **({} if info.heads == ("Default",) else {"heads": list(info.heads)}),
        "edge_vector": "receiver_minus_sender"
        if info.framework == "mace"
        else "sender_minus_receiver",
        "source": {"name": source[0], "sha256": source[1]} if source else None,
        "verification": None,
        "options": asdict(options),
        **program,
    }
    package = Package(manifest, tensors)
    try:
        package.check()
    except PackageError as error:
        raise CheckpointError(f"the checkpoint makes no valid package: {error}") from error
    return package


def _otherwise(model: Any) -> str:
    """Return "; " and advice to patch the model in place, or nothing if that fails too."""
    from ..patch import inspect_model

    try:
        patchable = inspect_model(model).complete
    except UnsupportedProblemError:
        patchable = False
    if not patchable:
        return ""
    return f"; you can patch the model in place instead ({how_in_place(model)})"


def _merged(model: Any) -> Any:
    """Return the model with its low-rank adapters multiplied into the weights."""
    if not any(type(module).__name__.startswith("LoRA") for module in model.modules()):
        return model
    from ..patch import copy_model
    from ..patch._frameworks import import_mace

    import_mace()
    from mace.modules.lora import merge_lora_weights

    return merge_lora_weights(copy_model(model))


def _columns(symbols: Sequence[str], wanted: Sequence[str] | None) -> list[int]:
    """Return the columns of the types asked for, in the order of the model."""
    if wanted is None:
        return list(range(len(symbols)))
    missing = sorted(set(wanted) - set(symbols))
    if missing or not wanted:
        raise ValueError(
            f"types {' '.join(missing) or '(none)'} are not in the model, expected any of: "
            f"{' '.join(symbols)}"
        )
    return [column for column, symbol in enumerate(symbols) if symbol in set(wanted)]
