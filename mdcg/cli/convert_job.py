"""``mdcg-patch IN -o OUT.mdcg``: converting a checkpoint to a package."""

from __future__ import annotations

import argparse
import logging
import math
from typing import TYPE_CHECKING, Any

from ..errors import MdcgError, printable
from ._common import UsageError
from .files import kernels_path, report_path
from .patch_job import (
    ROUNDING,
    check_choices,
    checked,
    closing,
    headline,
    opened,
    report_bytes,
)

if TYPE_CHECKING:
    from ..package import Package
    from ..patch import VerificationReport

_DIFFERS = (
    "the results of the package differ from the original's, so nothing was written: patch the "
    "model in place, which keeps the original's arithmetic, by naming the output "
)
_SINGLE = (
    "computes in float64, like the checkpoint; with --dtype float32 it would be about 2.4 times as "
    f"fast on a GPU and 2.5 times on a CPU, and {ROUNDING}"
)

log = logging.getLogger("mdcg")

Result = tuple[dict[str, Any], str]


def convert(options: argparse.Namespace) -> Result:
    """Convert a model, save and evaluate it beside the target, compare, and rename the file."""
    from ..package import ConversionOptions, convert_model
    from ..package.convert import outputs_in_place
    from ..package.file import staged, write_synced
    from ..package.kernel_file import check_targets, compile_kernels
    from ..package.verification import package_reference, verify_package
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
    )
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
        write_synced(package_file, package.to_bytes())
        if reference is not None:
            log.info("comparing the package; kernels that are not in the cache are compiled")
            check = verify_package(
                package_file, original, atol_forces=options.atol_forces, reference=reference
            )
            checked(check, _DIFFERS + outputs_in_place(original), result, lines)
            package.manifest["verification"] = _recorded(check)
            write_synced(package_file, package.to_bytes())
        for file in beside:
            log.info("compiling kernels for %s", ", ".join(options.bundle))
            write_synced(file, compile_kernels(package_file, options.bundle))
        log.info("writing %s", printable(str(options.output)))
        size = package_file.stat().st_size
        write_synced(report_file, report_bytes(result))
    if package.dtype == "float64" and options.dtype is None:
        lines.append(_SINGLE)
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
    """Return how each layer with a radial network evaluates it."""
    return {
        layer["name"]: "exact" if layer["radial"]["table"] is None else "table"
        for layer in package.layers
        if "radial" in layer
    }


def _summary(package: Package) -> list[str]:
    """Return lines that describe the package."""
    kinds = list(_radials(package).values())
    parts = [
        f"{kinds.count(kind)} {text}"
        for kind, text in (("table", "tabulated"), ("exact", "exact"))
        if kind in kinds
    ]
    names = package.type_names
    listing = " ".join(names) if len(names) <= 12 else f"{len(names)} types"
    added = f", D3 dispersion of {package.dispersion}" if package.dispersion else ""
    return [
        f"converted: {listing}, {package.dtype}, {len(package.layers)} layers, "
        f"radial networks: {', '.join(parts)}{added}"
    ]


def _recorded(check: VerificationReport) -> dict[str, Any]:
    """Return the record for the manifest: powers of ten, which are the same on every machine."""
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
