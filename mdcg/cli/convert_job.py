"""The work of ``mdcg-patch IN -o OUT.mdcg``."""

from __future__ import annotations

import argparse
import json
import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..errors import MdcgError, VerificationError
from ._common import UsageError
from .files import file_sha256, report_path, staged
from .patch_job import _choose_head, _headline, _model_dict, _versions

if TYPE_CHECKING:
    from ..package import ConversionOptions, Package
    from ..patch import VerificationReport

__all__ = ["convert"]

log = logging.getLogger("mdcg")

Result = tuple[dict[str, Any], str]


def convert(options: argparse.Namespace) -> Result:
    """Convert, save beside the target, evaluate that, compare, and move it to its place."""
    from ..package import ConversionOptions, convert_model
    from ..package.bundle import add_binaries, check_targets
    from ..patch import load_model, model_info, model_record, unpatch_model

    check_targets(options.bundle)
    digest = file_sha256(options.input)
    original = load_model(options.input)
    default = model_record(original).get("head")
    unpatch_model(original)
    info = model_info(original)
    head = _choose_head(info, options.head or default)
    _check_types(options.types, info.symbols)
    wanted = ConversionOptions(
        types=None if options.types is None else tuple(options.types),
        head=head,
        dtype=options.dtype,
        graph_fields=tuple(sorted(options.set)),
        radial=options.radial,
    )
    source = (options.input.name, digest)
    try:
        package = convert_model(original, wanted, source=source)
    except ValueError as error:
        if isinstance(error, MdcgError) or not options.set:
            raise
        raise UsageError(f"--set: {error}") from error
    if not options.no_verify and options.radial is None and any(_radials(package).values()):
        package = _checked_tables(original, package, wanted, options, source)
    add_binaries(package, options.bundle)
    result: dict[str, Any] = {
        "input": str(options.input),
        "output": str(options.output),
        "model": _model_dict(info),
        "head": head,
        "package": {
            "types": package.type_names,
            "dtype": package.dtype,
            "layers": len(package.layers),
            "kernels": [kernel["name"] for kernel in package.manifest["kernels"]],
            "bundle": list(options.bundle),
            "radial": _radials(package),
        },
        "record": {
            "mdcg": __version__,
            "source": options.input.name,
            "source_sha256": digest,
            "versions": _versions(),
        },
        "verification": None,
    }
    lines = [_headline(options.input, info), *_summary(package)]
    with staged(options.output, report_path(options.output)) as (package_file, report_file):
        package_file.write_bytes(package.to_bytes())
        if not options.no_verify:
            check = _verify(original, package_file, head, options, result, lines)
            package.manifest["verification"] = _recorded(check)
            package_file.write_bytes(package.to_bytes())
            lines.append(check.summary())
        size = package_file.stat().st_size
        report_file.write_text(
            json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    lines.append(_closing(options, package, size))
    return result, "\n".join(lines)


def _checked_tables(
    original: Any,
    package: Package,
    wanted: ConversionOptions,
    options: argparse.Namespace,
    source: tuple[str, str],
) -> Package:
    """Return the package, or one with exact radial networks where tables are not good enough."""
    from ..package import convert_model
    from ..package.verification import verify_package

    with staged(options.output.with_suffix(".tables.mdcg"), keep=False) as (path,):
        path.write_bytes(package.to_bytes())
        check = verify_package(
            path, original, head=package.head, atol_forces=options.atol_forces, kernels="generic"
        )
    if check.passed:
        return package
    log.info("tabulated radial functions are not exact enough for this model: it keeps networks")
    return convert_model(original, replace(wanted, radial="exact"), source=source)


def _check_types(types: list[str] | None, symbols: tuple[str, ...]) -> None:
    missing = [name for name in types or () if name not in symbols]
    if missing:
        raise UsageError(
            f"--types names {' '.join(missing)}, which the model does not have, expected any of: "
            f"{' '.join(symbols)}"
        )


def _radials(package: Package) -> dict[str, Any]:
    """Return of each layer with a radial network its table, or None where it is exact."""
    return {
        layer["name"]: layer["radial"]["table"] for layer in package.layers if "radial" in layer
    }


def _summary(package: Package) -> list[str]:
    """Return lines that tell what the package is."""
    tables = [table for table in _radials(package).values() if table]
    exact = len(_radials(package)) - len(tables)
    parts = []
    if tables:
        worst = max(table["error"] for table in tables)
        parts.append(f"{len(tables)} tabulated (relative error below {worst:.0e})")
    if exact:
        parts.append(f"{exact} exact")
    names = package.type_names
    listing = " ".join(names) if len(names) <= 12 else f"{len(names)} types"
    return [
        f"converted: {listing}, {package.dtype}, {len(package.layers)} layers, "
        f"{len(package.manifest['kernels'])} generated kernels, radial networks: {', '.join(parts)}"
    ]


def _verify(
    original: Any,
    path: Any,
    head: str,
    options: argparse.Namespace,
    result: dict[str, Any],
    lines: list[str],
) -> VerificationReport:
    """Compare the file as it was written with the original; put the outcome into `result`."""
    from ..package.verification import verify_package

    check = verify_package(path, original, head=head, atol_forces=options.atol_forces)
    result["verification"] = check.to_dict()
    if check.passed:
        return check
    error = VerificationError(
        "the package does not give what the original gives: nothing was written; patching in place "
        "(name the output .model) keeps the original's own arithmetic"
    )
    error.result = (result, "\n".join([*lines, str(check), check.summary()]))  # type: ignore[attr-defined]
    raise error


def _recorded(check: VerificationReport) -> dict[str, Any]:
    """Return what the manifest keeps: powers of ten, which are the same on every machine."""
    below = {}
    for name, worst in check.worst().items():
        error = max(worst.error, 1e-18)
        below[f"{name} ({worst.unit})"] = float(f"1e{math.ceil(math.log10(error))}")
    return {
        "passed": check.passed,
        "dtype": check.dtype,
        "structures": len({deviation.system for deviation in check.deviations}),
        "below": below,
    }


def _closing(options: argparse.Namespace, package: Package, size: int) -> str:
    checked = "not verified" if options.no_verify else "verified"
    kernels = ", ".join(["source", *options.bundle])
    return (
        f"wrote {options.output} ({size / 1e6:.2f} MB, kernels: {kernels}; {checked}).  "
        f'Next: mdcg.MDCGCalculator("{options.output}") in ASE'
    )
