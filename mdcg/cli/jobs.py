"""The jobs of mdcg-patch: describe a checkpoint, patch it in place, convert it."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import platform
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..errors import (
    MdcgError,
    PackageError,
    UnsupportedProblemError,
    VerificationError,
    installed_version,
    printable,
)
from ._common import UsageError

if TYPE_CHECKING:
    import torch

    from ..package import Package
    from ..patch import ModelInfo, VerificationReport


SUFFIXES = (".model", ".pt")
PACKAGE = ".nequip.zip"
CONVERTED = ".mdcg"
_LONGEST_NAME = 255  # bytes, on all usual file systems of Linux


def report_path(output: Path) -> Path:
    """Return the path of an output's report."""
    return output.with_name(output.name + ".report.json")


def kernels_path(output: Path) -> Path:
    """Return the path of an output's compiled kernels."""
    return output.with_suffix(".mdcg-kernels")


def output_problems(source: Path, output: Path, *, force: bool, bundle: bool) -> list[str]:
    """Return the reasons against writing an output, with its kernels or not, as sentences."""
    longest = report_path(output).name
    if len(os.fsencode(longest)) > _LONGEST_NAME:
        return [
            f"the name {longest} of the report has {len(os.fsencode(longest))} bytes, expected at "
            f"most {_LONGEST_NAME}: choose a shorter name for the output"
        ]
    if output.suffix in (".ckpt", ".pth", ".pt2"):
        return [
            f"{output}: mdcg-patch writes .mdcg, .model or .pt files, and .nequip.zip from "
            "packages; nequip-train and nequip-compile take the modifier enable_mdcg instead"
        ]
    if output.suffix not in (*SUFFIXES, CONVERTED) and not output.name.endswith(PACKAGE):
        return [
            f"{output} has the suffix {output.suffix!r}, expected .mdcg, .model or .pt "
            "(.nequip.zip if the input is a NequIP package)"
        ]
    if output.is_dir():
        return [f"{output} is a folder, expected a file name"]
    if not output.parent.is_dir():
        return [f"the folder {output.parent} does not exist: make it first"]
    found = []
    for target in (output, report_path(output), *([kernels_path(output)] if bundle else [])):
        if not os.path.lexists(target):
            continue
        if target.exists() and source.exists() and target.samefile(source):
            found.append(f"{target} is the input file, which is never overwritten: name another")
        elif not force:
            found.append(f"{target} exists already: name another output or use --force")
        elif target.exists() and not target.is_file():  # a device, a pipe
            found.append(f"{target} is not a regular file: name another output")
    return found


def package_problems(source: Path, output: Path, *, package: bool) -> list[str]:
    """Return why an output's kind does not fit the input: both or neither are NequIP packages."""
    if package and not output.name.endswith(PACKAGE):
        return [
            f"{source} is a NequIP package, whose classes are inside it: name the output "
            "*.nequip.zip"
        ]
    if not package and output.name.endswith(PACKAGE):
        return [
            f"{source} is not a NequIP package: name the output *.pt, or make a package of it with "
            "nequip-package first"
        ]
    return []


log = logging.getLogger("mdcg")

Result = tuple[dict[str, Any], str]

# Measured with MACE medium and 5,184 atoms of water on one H200.
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
    from ..package.inputs import lowest_values
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
    in_place = f"patching in {'a program' if info.framework == 'sevennet' else 'place'}"
    refused = {in_place: patching, **_package_refusals(model, info, fields)}
    result["supported"] = {use: not reason for use, reason in refused.items()}
    result["reasons"] = {use: reason for use, reason in refused.items() if reason}
    for use, reason in refused.items():
        answer = "in part" if in_part and use == in_place else "not supported"
        lines.append(f"{use}: {f'{answer}, {reason}' if reason else 'supported'}")
    if fields:
        values = " ".join(f"--set {name}=VALUE" for name in fields)
        lines.append(f"reads of each structure: {', '.join(fields)} (defaults: {values})")
    return result, "\n".join(lines)


def _package_refusals(
    model: torch.nn.Module, info: ModelInfo, fields: Mapping[str, int]
) -> dict[str, str]:
    """Return why each use of a package of the model is impossible, or empty strings."""
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
    """Patch a model: save and load a temporary file, compare the model, and rename the file."""
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
    from ..patch.checkpoint_kind import NEQUIP_PACKAGE, NEQUIX, SEVENNET, checkpoint_kind
    from ..patch.models import lacks_radial_derivative

    device = _device(options.device)
    kind = checkpoint_kind(options.input)
    if kind == SEVENNET:
        raise UnsupportedProblemError(
            f"{options.input} is a SevenNet checkpoint, of which mdcg-patch makes packages only: "
            "name the output OUT.mdcg, or patch the model in a program: "
            "mdcg.patch_model(SevenNetCalculator(...).model)"
        )
    if kind == NEQUIX:
        raise UnsupportedProblemError(
            f"{options.input} is a Nequix model, of which mdcg-patch makes packages only: name the "
            "output OUT.mdcg"
        )
    package = kind == NEQUIP_PACKAGE
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
    patched = patched.to("cpu")  # so that the file loads on any machine
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
    """Return the unpatched model of the input, its default head, and the start of a report."""
    from ..package.convert import load_with_digest
    from ..patch import model_info, model_record, unpatch_model

    model, digest = load_with_digest(options.input)
    default = model_record(model).get("head")
    unpatch_model(model)
    names = ("torch", "e3nn", "mace-torch", "nequip", "sevenn", "nequix")
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
    """Return the bytes of a patched model's file: a pickle, or a NequIP package."""
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
    """Attach the table of all layers to an error, which is printed with it."""
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
            f"the model has {len(info.heads)} {info.head_word}s: name one of them with "
            f"--{info.head_word}: {listing}"
            if head is None
            else f"--{info.head_word} is {head!r}, expected one of: {listing}"
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
    """Return facts about a model for JSON."""
    facts: dict[str, Any] = {"class": info.model_class, "elements": list(info.symbols)}
    if not info.is_nequip:
        facts["atomic_numbers"] = list(info.atomic_numbers)
    return {
        **facts,
        "framework": info.framework,
        "r_max": info.r_max,
        "dtype": str(info.dtype).removeprefix("torch."),
        "heads": list(info.heads),
    }


def headline(path: Path, info: ModelInfo) -> str:
    """Return facts about a model as one line."""
    elements = list(info.symbols)
    listing = " ".join(elements) if len(elements) <= 12 else f"{len(elements)} elements"
    dtype = str(info.dtype).removeprefix("torch.")
    heads = ", ".join(info.heads)
    facts = f"{listing}, r_max {info.r_max:.4g} Å, {dtype}"
    if info.heads != ("Default",) or not info.is_nequip:
        facts += f", {info.head_word}s: {heads}"
    return f"{printable(path.name)}: {info.model_class}, {facts}"


def closing(
    options: argparse.Namespace, what: str, check: VerificationReport | None, lammps: str = ""
) -> str:
    """Return the last line: the output, how it was checked, and how to use it."""
    how = "not verified"
    if check is not None:
        structures = len({deviation.system for deviation in check.deviations})
        how = f"checked on {structures} structures"
    output = printable(str(options.output))
    ase = f'In ASE: atoms.calc = mdcg.MDCGCalculator("{output}")'
    return f"wrote {output} ({what}; {how}).  {ase}{lammps}"


_PACKAGE_DIFFERS = (
    "the results of the package differ from the original's, so nothing was written: patch the "
    "model in place, which keeps the original's arithmetic"
)
_PACKAGE_SINGLE = (
    "computes in float64, like the checkpoint; with --dtype float32 it would be about 2.4 times as "
    f"fast on a GPU and 2.5 times on a CPU, and {ROUNDING}"
)


def convert(options: argparse.Namespace) -> Result:
    """Convert a model: save and evaluate a temporary file, compare it, and rename the file."""
    from ..package import ConversionOptions, convert_model
    from ..package.convert import how_in_place
    from ..package.file import staged, write_synced
    from ..package.kernel_file import check_targets, compile_kernels
    from ..package.les import set_constants
    from ..package.verification import package_reference, write_verified
    from ..patch import model_info

    check_targets(options.bundle)
    original, default, result = opened(options)
    info = model_info(original)
    result["head"] = head = check_choices(options, info, default)
    wanted = ConversionOptions(
        types=None if options.types is None else tuple(options.types),
        head=head,
        dtype=options.dtype,
        graph_fields=tuple(sorted(options.set)),
        radial=options.radial,
        dispersion=options.dispersion,
        les_factor=options.les_factor,
        les_own_part=options.les_own_part,
    )
    if options.les_factor or options.les_own_part:
        try:  # also of the original, with which the package is compared
            set_constants(original, options.les_factor, options.les_own_part)
        except ValueError as error:
            raise UsageError(str(error)) from error
    source = (options.input.name, result["record"]["source_sha256"])
    log.info("converting")
    try:
        package = convert_model(original, wanted, source=source)
    except ValueError as error:
        if isinstance(error, MdcgError) or not options.set:
            raise
        raise UsageError(f"--set: {error}") from error
    reference = None
    if not options.no_verify:
        reference = package_reference(package, original, head=head)
    result["package"] = {
        "types": package.type_names,
        "dtype": package.dtype,
        "layers": len(package.layers),
        "bundle": list(options.bundle),
        "radial": _radials(package),
        "dispersion": package.dispersion,
    }
    lines = [headline(options.input, info), *_summary(package)]
    check = None
    targets = [options.output, report_path(options.output)]
    if options.bundle:
        targets.append(kernels_path(options.output))
    with staged(*targets, overwrite=options.force) as (package_file, report_file, *beside):
        if reference is None:
            write_synced(package_file, package.to_bytes())
        else:
            log.info("comparing the package; kernels that are not in the cache are compiled")
            check = write_verified(
                package, package_file, original, atol_forces=options.atol_forces,
                reference=reference,
            )  # fmt: skip
            checked(check, f"{_PACKAGE_DIFFERS} ({how_in_place(original)})", result, lines)
        for file in beside:
            log.info("compiling kernels for %s", ", ".join(options.bundle))
            write_synced(file, compile_kernels(package_file, options.bundle))
        log.info("writing %s", printable(str(options.output)))
        size = package_file.stat().st_size
        write_synced(report_file, report_bytes(result))
    if package.dtype == "float64" and options.dtype is None:
        lines.append(_PACKAGE_SINGLE)
    kernels = ""
    if options.bundle:
        kernels = f"; {kernels_path(options.output)} for {', '.join(options.bundle)}"
    lammps = (
        f"; in LAMMPS: pair_style mdcg, pair_coeff * * {options.output} "
        "<elements of types 1, 2, ...>"
    )
    what = f"{size / 1e6:.2f} MB, {package.dtype}{kernels}"
    lines.append(closing(options, what, check, lammps))
    return result, "\n".join(lines)


def _radials(package: Package) -> dict[str, str]:
    """Return for each layer with a radial network whether it is exact or a table."""
    return {
        layer["name"]: "exact" if layer["radial"]["table"] is None else "table"
        for layer in package.layers
        if "radial" in layer
    }


def _summary(package: Package) -> list[str]:
    """Return lines that describe the package."""
    from ..package.inputs import input_text
    from .package_info import long_range_layers, long_range_text

    kinds = list(_radials(package).values())
    parts = [
        f"{kinds.count(kind)} {text}"
        for kind, text in (("table", "tabulated"), ("exact", "exact"))
        if kind in kinds
    ]
    names = package.type_names
    listing = " ".join(names) if len(names) <= 12 else f"{len(names)} types"
    added = f", D3 dispersion of {package.dispersion}" if package.dispersion else ""
    sums = [long_range_text(layer) for layer in long_range_layers(package.layers)]
    return [
        f"converted: {listing}, {package.dtype}, {len(package.layers)} layers, "
        f"radial networks: {', '.join(parts)}{added}",
        *map(input_text, package.inputs),
        *sums,
    ]
