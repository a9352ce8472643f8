"""``mdcg-patch``: describing a checkpoint, and patching it in place."""

from __future__ import annotations

import argparse
import io
import json
import logging
import platform
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..errors import (
    PackageError,
    UnsupportedProblemError,
    VerificationError,
    installed_version,
    printable,
)
from ._common import UsageError
from .files import PACKAGE, package_problems, report_path

if TYPE_CHECKING:
    import torch

    from ..patch import ModelInfo, VerificationReport

log = logging.getLogger("mdcg")

Result = tuple[dict[str, Any], str]

# Measured with MACE medium and 5,184 atoms of water on one H200 (docs/benchmarks.md).
ROUNDING = "forces of MACE medium then differ by at most 4e-8 eV/Å where the largest is 0.1 eV/Å"
_SINGLE = (
    "computed in float64, like the checkpoint; with --dtype float32 its generated kernels would be "
    f"1.8 times as fast on a GPU, and {ROUNDING}"
)
_DIFFERS = "the results of the patched model differ from the original's: nothing was written"
_OWN_FORCES = (
    "MACE's forces and stress, which the patched model repeats, are not the gradient of its "
    'energy: torch gives the Chebyshev polynomials of radial_type="chebyshev" a derivative of '
    "zero; those of an .mdcg package are"
)


def describe(options: argparse.Namespace) -> Result:
    """Describe a checkpoint (``--info``)."""
    from ..package.dispersion import training_functional
    from ..package.fields import lowest_values
    from ..patch import inspect_model, load_model, model_info, model_record

    model = load_model(options.input)
    info = model_info(model)
    result: dict[str, Any] = {"input": str(options.input), "model": model_dict(info)}
    lines = [headline(options.input, info)]
    lines += [training_functional(head) for head in info.heads]
    record = model_record(model)
    if record:
        result["patched_from"] = record
        lines.append(f"written by mdcg-patch {record.get('mdcg')} from {record.get('source')}")
    patching, in_part = "", False
    try:
        report = inspect_model(model)
    except UnsupportedProblemError as error:
        patching = str(error)
    else:
        lines.append(str(report))
        result["report"] = report.to_dict()
        if report.refused:
            patching = f"{len(report.refused)} of {len(report.layers)} layers cannot be patched"
            in_part = bool(report.patchable)
        if in_part:
            patching += " (--allow-partial patches the others)"
    fields = lowest_values(model)
    in_place = "patching in place"
    refused = {in_place: patching, **_package_refusals(model, info, fields)}
    result["supported"] = {use: not reason for use, reason in refused.items()}
    result["reasons"] = {use: reason for use, reason in refused.items() if reason}
    for use, reason in refused.items():
        answer = "in part" if in_part and use == in_place else "not supported"
        lines.append(f"{use}: {f'{answer}, {reason}' if reason else 'supported'}")
    if fields:
        values = " ".join(f"--set {name}=VALUE" for name in fields)
        lines.append(f"a package is made for one value of: {', '.join(fields)} ({values})")
    return result, "\n".join(lines)


def _package_refusals(
    model: torch.nn.Module, info: ModelInfo, fields: Mapping[str, int]
) -> dict[str, str]:
    """Return for each use of a package of the model why it is impossible, or an empty string."""
    from ..package import ConversionOptions, convert_model
    from ..package.kernel_file import device_refusal

    uses = ("package on CPUs", "package on GPUs", "package in LAMMPS")
    try:
        options = ConversionOptions(
            head=info.heads[0], radial="exact", graph_fields=tuple(sorted(fields.items()))
        )
        package = convert_model(model, options)
    except (UnsupportedProblemError, PackageError) as error:
        return dict.fromkeys(uses, str(error))
    with tempfile.NamedTemporaryFile(suffix=".mdcg") as file:
        file.write(package.to_bytes())
        file.flush()
        on_devices = device_refusal(Path(file.name))
    in_lammps = "" if package.has_energies else "the model gives dipoles and no energies"
    return dict(zip(uses, ("", on_devices, in_lammps), strict=True))


def run(options: argparse.Namespace) -> Result:
    """Patch a model, save and load it beside the target, compare, and rename the file."""
    import torch

    from ..package.file import staged, write_synced
    from ..patch import (
        copy_model,
        load_model,
        model_info,
        patch_model,
        set_model_record,
        verify_patch,
    )
    from ..patch.checkpoint_kind import NEQUIP_PACKAGE, checkpoint_kind
    from ..patch.hosts import lacks_radial_derivative

    device = _device(options.device)
    package = checkpoint_kind(options.input) == NEQUIP_PACKAGE
    options.problems += package_problems(options.input, options.output, package=package)
    original, default, result = opened(options)
    info = model_info(original)
    if options.dtype and info.dtype != getattr(torch, options.dtype):
        _check_dtype_is_free(info, options.dtype)
        original = original.to(getattr(torch, options.dtype))
        info = model_info(original)
        result["model"] = model_dict(info)
    result["head"] = head = check_choices(options, info, default)

    log.info("patching; kernels that are not in the cache are compiled")
    # layers are checked on the device that the model will run on
    patched = copy_model(original).to(device)
    try:
        report = patch_model(patched, allow_partial=options.allow_partial)
    except UnsupportedProblemError as error:
        _show_layers(error, patched, options, info)
        raise
    result["report"] = report.to_dict()
    record = result["record"]
    record |= {"head": head, "dtype": str(info.dtype).removeprefix("torch.")}
    record["layers"] = [layer.name for layer in report.patched]
    patched = patched.to("cpu")  # on the CPU, so that the file loads on any machine
    set_model_record(patched, record)
    lines = [headline(options.input, info), str(report)]
    check = None
    suffix = PACKAGE if package else ".tmp"
    targets = (options.output, report_path(options.output))
    with staged(*targets, suffix=suffix, overwrite=options.force) as (model_file, report_file):
        write_synced(model_file, _saved(patched, options, record))
        if not options.no_verify:
            saved = load_model(model_file)
            pair = original.to(device), saved.to(device)
            check = verify_patch(*pair, head=head, atol_forces=options.atol_forces)
            checked(check, _DIFFERS, result, lines)
        if lacks_radial_derivative(original):
            lines.append(_OWN_FORCES)
        log.info("writing %s", printable(str(options.output)))
        write_synced(report_file, report_bytes(result))
    if info.dtype == torch.float64 and not (options.dtype or info.is_nequip):
        lines.append(_SINGLE)
    layers = len(report.patched) + len(report.refused)
    lines.append(closing(options, f"{len(report.patched)} of {layers} layers patched", check))
    return result, "\n".join(lines)


def opened(options: argparse.Namespace) -> tuple[torch.nn.Module, str | None, dict[str, Any]]:
    """Return the unpatched model of the input, its default head, and a report to be completed."""
    from ..package.convert import load_with_digest
    from ..patch import model_info, model_record, unpatch_model

    model, digest = load_with_digest(options.input)
    default = model_record(model).get("head")
    unpatch_model(model)
    names = ("torch", "e3nn", "mace-torch", "nequip")
    versions = {"python": platform.python_version(), **{n: installed_version(n) for n in names}}
    result = {
        "input": str(options.input),
        "output": str(options.output),
        "model": model_dict(model_info(model)),
        "head": default,
        "record": {
            "mdcg": __version__,
            "source": options.input.name,
            "source_sha256": digest,
            "versions": versions,
        },
        "verification": None,
    }
    return model, default, result


def _saved(
    patched: torch.nn.Module, options: argparse.Namespace, record: dict[str, Any]
) -> memoryview:
    """Return a patched model as the bytes of a file: pickled, or as the package it came from."""
    import torch

    from ..patch.nequip_files import write_nequip_package

    # in memory, because torch reports a full disk as an internal error
    target = io.BytesIO()
    if options.output.name.endswith(PACKAGE):
        write_nequip_package(options.input, target, record)
    else:
        torch.save(patched, target)
    return target.getbuffer()


def report_bytes(result: dict[str, Any]) -> bytes:
    """Return the contents of a report."""
    return (json.dumps(result, indent=2, ensure_ascii=False) + "\n").encode()


def _check_dtype_is_free(info: ModelInfo, dtype: str) -> None:
    if info.is_nequip:
        built = str(info.dtype).removeprefix("torch.")
        raise UsageError(
            f"--dtype is {dtype}, but the NequIP model was built in {built} (model_dtype of its "
            "configuration), which is fixed: leave out --dtype"
        )


def _show_layers(
    error: Exception, model: torch.nn.Module, options: argparse.Namespace, info: ModelInfo
) -> None:
    """Attach the table of all layers to an error, to be printed with it."""
    from ..patch import inspect_model

    with suppress(UnsupportedProblemError):
        report = inspect_model(model)
        result = {
            "input": str(options.input),
            "model": model_dict(info),
            "report": report.to_dict(),
        }
        text = f"{headline(options.input, info)}\n{report}"
        error.result = (result, text)  # type: ignore[attr-defined]


def checked(
    check: VerificationReport, otherwise: str, result: dict[str, Any], lines: list[str]
) -> None:
    """Add the outcome of a verification to `result` and `lines`; raise `otherwise` if it failed."""
    result["verification"] = check.to_dict()
    if not check.passed:
        error = VerificationError(otherwise)
        error.result = (result, "\n".join([*lines, str(check), check.summary()]))  # type: ignore[attr-defined]
        raise error
    lines += [check.summary(), *filter(None, [check.note])]


def _device(name: str) -> torch.device:
    from ..calculators.torch_backend import as_device

    try:
        return as_device(name)
    except ValueError as error:
        raise UsageError(f"--device is {name!r}, expected cpu or cuda") from error


def check_choices(options: argparse.Namespace, info: ModelInfo, default: str | None) -> str:
    """Return the head to use, or raise one error that lists all mistakes in the arguments."""
    problems, head, chosen = list(options.problems), options.head or default, 0
    try:
        chosen = info.head_index(head)
    except ValueError:
        listing = ", ".join(info.heads)
        problems.append(
            f"the model has {len(info.heads)} heads: name one of them with --head: {listing}"
            if head is None
            else f"--head is {head!r}, expected one of: {listing}"
        )
    missing = [name for name in options.types or () if name not in info.symbols]
    if missing:
        problems.append(
            f"--types names {' '.join(missing)}, which the model does not have, expected any of: "
            f"{' '.join(info.symbols)}"
        )
    if problems:
        raise UsageError("; ".join(problems))
    return info.heads[chosen]


def model_dict(info: ModelInfo) -> dict[str, Any]:
    """Return the facts about a model for JSON."""
    facts: dict[str, Any] = {"class": info.model_class, "elements": list(info.symbols)}
    if not info.is_nequip:
        facts["atomic_numbers"] = list(info.atomic_numbers)
    return {
        **facts,
        "framework": "nequip" if info.is_nequip else "mace",
        "r_max": info.r_max,
        "dtype": str(info.dtype).removeprefix("torch."),
        "heads": list(info.heads),
    }


def headline(path: Path, info: ModelInfo) -> str:
    """Return the facts about a model as one line."""
    elements = list(info.symbols)
    listing = " ".join(elements) if len(elements) <= 12 else f"{len(elements)} elements"
    dtype = str(info.dtype).removeprefix("torch.")
    heads = ", ".join(info.heads)
    facts = f"{listing}, r_max {info.r_max:.4g} Å, {dtype}"
    if info.heads != ("Default",) or not info.is_nequip:
        facts += f", heads: {heads}"
    return f"{printable(path.name)}: {info.model_class}, {facts}"


def closing(
    options: argparse.Namespace, what: str, check: VerificationReport | None, lammps: str = ""
) -> str:
    """Return the last line: what was written, how it was checked, and what to type next."""
    how = "not verified"
    if check is not None:
        structures = len({deviation.system for deviation in check.deviations})
        how = f"checked on {structures} structures"
    output = printable(str(options.output))
    ase = f'In ASE: atoms.calc = mdcg.MDCGCalculator("{output}")'
    return f"wrote {output} ({what}; {how}).  {ase}{lammps}"
