"""The work of ``mdcg-patch`` once the arguments are known."""

from __future__ import annotations

import argparse
import json
import platform
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..errors import DeviceError, UnsupportedProblemError, VerificationError
from ._common import UsageError
from .files import PACKAGE, check_package, file_sha256, report_path, staged

if TYPE_CHECKING:
    import torch

    from ..patch.hosts import Info

__all__ = ["describe", "run"]

Result = tuple[dict[str, Any], str]


def describe(options: argparse.Namespace) -> Result:
    """Tell what is in a checkpoint (``--info``)."""
    from ..patch import inspect_model, load_model, model_info, model_record

    model = load_model(options.input)
    info = model_info(model)
    result: dict[str, Any] = {"input": str(options.input), "model": _model_dict(info)}
    lines = [_headline(options.input, info)]
    record = model_record(model)
    if record:
        result["patched_from"] = record
        lines.append(f"written by mdcg-patch {record.get('mdcg')} from {record.get('source')}")
    try:
        report = inspect_model(model)
    except UnsupportedProblemError as error:
        result["supported"] = False
        result["reason"] = str(error)
        return result, "\n".join([*lines, f"supported: no, {error}"])
    result["supported"] = report.complete
    result["report"] = report.to_dict()
    if report.complete:
        verdict = "supported: yes"
    elif report.patchable:
        verdict = f"supported: in part ({len(report.refused)} layers not), with --allow-partial"
    else:
        verdict = "supported: no"
    return result, "\n".join([*lines, str(report), verdict])


def run(options: argparse.Namespace) -> Result:
    """Patch, save beside the target, load that again, compare, and move it to its place."""
    import torch

    from ..patch import (
        copy_model,
        load_model,
        model_info,
        patch_model,
        set_model_record,
        unpatch_model,
    )
    from ..patch.checkpoint_kind import NEQUIP_PACKAGE, checkpoint_kind

    device = _device(options.device)
    package = checkpoint_kind(options.input) == NEQUIP_PACKAGE
    check_package(options.input, options.output, package=package)
    source_hash = file_sha256(options.input)
    original = load_model(options.input)
    record_before = _default_head(original)
    unpatch_model(original)
    info = model_info(original)
    if options.dtype and info.dtype != getattr(torch, options.dtype):
        _check_dtype_is_free(info, options.dtype)
        original = original.to(getattr(torch, options.dtype))
        info = model_info(original)
    head = _choose_head(info, options.head or record_before)

    # layers are checked where the whole model will be
    patched = copy_model(original).to(device)
    try:
        report = patch_model(patched, allow_partial=options.allow_partial)
    except UnsupportedProblemError as error:
        _show_layers(error, patched, options, info)
        raise
    record = {
        "mdcg": __version__,
        "source": options.input.name,
        "source_sha256": source_hash,
        "head": head,
        "dtype": str(info.dtype).removeprefix("torch."),
        "versions": _versions(),
        "layers": [layer.name for layer in report.patched],
    }
    patched = patched.to("cpu")  # as it was, so that the file loads anywhere
    set_model_record(patched, record)
    result: dict[str, Any] = {
        "input": str(options.input),
        "output": str(options.output),
        "model": _model_dict(info),
        "head": head,
        "report": report.to_dict(),
        "record": record,
        "verification": None,
    }
    lines = [_headline(options.input, info), str(report)]
    suffix = PACKAGE if package else ".tmp"
    targets = (options.output, report_path(options.output))
    with staged(*targets, suffix=suffix) as (model_file, report_file):
        _save(patched, options, model_file, record)
        if not options.no_verify:
            saved = load_model(model_file)
            summary = _verify(original.to(device), saved.to(device), head, options, result, lines)
            lines.append(summary)
        report_file.write_text(
            json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    lines.append(_closing(options, len(report.patched), len(report.patched) + len(report.refused)))
    return result, "\n".join(lines)


def _save(
    patched: torch.nn.Module, options: argparse.Namespace, target: Path, record: dict[str, Any]
) -> None:
    """Write a patched model: pickled, or as the package it came from."""
    import torch

    from ..patch.nequip_files import write_nequip_package

    if options.output.name.endswith(PACKAGE):
        write_nequip_package(options.input, target, record)
    else:
        torch.save(patched, target)


def _check_dtype_is_free(info: Info, dtype: str) -> None:
    from ..patch import NequipInfo

    if isinstance(info, NequipInfo):
        built = str(info.dtype).removeprefix("torch.")
        raise UsageError(
            f"--dtype is {dtype}, but the NequIP model was built in {built} (model_dtype of its "
            "configuration), which is fixed: leave out --dtype"
        )


def _show_layers(
    error: Exception, model: torch.nn.Module, options: argparse.Namespace, info: Info
) -> None:
    """Attach to an error what is printed with it: all layers of the model, if it has any."""
    from ..patch import inspect_model

    with suppress(UnsupportedProblemError):
        report = inspect_model(model)
        result = {
            "input": str(options.input),
            "model": _model_dict(info),
            "report": report.to_dict(),
        }
        text = f"{_headline(options.input, info)}\n{report}"
        error.result = (result, text)  # type: ignore[attr-defined]


def _verify(
    original: torch.nn.Module,
    saved: torch.nn.Module,
    head: str | None,
    options: argparse.Namespace,
    result: dict[str, Any],
    lines: list[str],
) -> str:
    """Compare the file as it was written with the original; put the outcome into `result`."""
    from ..patch import verify_patch

    check = verify_patch(original, saved, head=head, atol_forces=options.atol_forces)
    result["verification"] = check.to_dict()
    if check.passed:
        return check.summary()
    error = VerificationError(
        "the patched model does not give what the original gives: nothing was written"
    )
    error.result = (result, "\n".join([*lines, str(check), check.summary()]))  # type: ignore[attr-defined]
    raise error


def _device(name: str) -> torch.device:
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device is {name!r}, expected cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            f"device {name!r} was requested but torch {torch.__version__} finds no CUDA device: "
            "use --device cpu. Details: python -m mdcg env"
        )
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device is {name!r}, expected cpu or cuda")
    return device


def _default_head(model: torch.nn.Module) -> str | None:
    from ..patch import model_record

    return model_record(model).get("head")


def _choose_head(info: Info, head: str | None) -> str:
    try:
        return info.heads[info.head_index(head)]
    except ValueError as error:
        listing = ", ".join(info.heads)
        if head is None:
            message = (
                f"the model has {len(info.heads)} heads: name one of them with --head: {listing}"
            )
        else:
            message = f"--head is {head!r}, expected one of: {listing}"
        raise UsageError(message) from error


def _model_dict(info: Info) -> dict[str, Any]:
    from ..patch import NequipInfo

    facts: dict[str, Any] = {"class": info.model_class, "elements": list(info.symbols)}
    if not isinstance(info, NequipInfo):
        facts["atomic_numbers"] = list(info.atomic_numbers)
    return {
        **facts,
        "framework": "nequip" if isinstance(info, NequipInfo) else "mace",
        "r_max": info.r_max,
        "dtype": str(info.dtype).removeprefix("torch."),
        "heads": list(info.heads),
    }


def _headline(path: Path, info: Info) -> str:
    elements = list(info.symbols)
    listing = " ".join(elements) if len(elements) <= 12 else f"{len(elements)} elements"
    dtype = str(info.dtype).removeprefix("torch.")
    heads = ", ".join(info.heads)
    facts = f"{listing}, r_max {info.r_max:.4g} Å, {dtype}"
    if info.heads != ("Default",) or "atomic_numbers" in vars(info):
        facts += f", heads: {heads}"
    return f"{path.name}: {info.model_class}, {facts}"


def _closing(options: argparse.Namespace, patched: int, layers: int) -> str:
    checked = "not verified" if options.no_verify else "verified"
    return (
        f"wrote {options.output} ({patched} of {layers} layers patched, {checked}).  "
        f'Next: mdcg.MDCGCalculator("{options.output}") in ASE'
    )


def _versions() -> dict[str, str | None]:
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("torch", "e3nn", "mace-torch", "nequip"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
