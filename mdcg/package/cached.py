"""Packages in the user's cache, each converted once from a checkpoint."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import asdict
from functools import cache
from pathlib import Path

from ..errors import OutputError, VerificationError, installed_version
from ..runtime.cache import models_dir, warn_once, why_not_kept
from .convert import ConversionOptions, convert_model, load_with_digest
from .file import SUFFIX, file_sha256, staged

_log = logging.getLogger("mdcg")


def cached_package(
    checkpoint: Path, options: ConversionOptions | None = None, name: str | None = None
) -> Path:
    """Return the package of a checkpoint, which is converted and compared with it only once.

    Packages lie in the cache of kernels, one for each content of a checkpoint, each set of options,
    and each version of the converter and of the libraries that it reads checkpoints with. The name,
    by default that of the file, is the start of the package's name.
    """
    options, name = options or ConversionOptions(), name or checkpoint.name
    if reason := why_not_kept():  # also where others could write the packages
        raise OutputError(f"{name} cannot be converted into the cache: {reason}")
    found = _place(name, file_sha256(checkpoint), options)
    if found.is_file():
        _log.info("%s was converted before: %s", name, found)
        return found
    warn_once(
        f"mdcg is converting {name} and comparing it with the original, which takes a while; it "
        f"does so once and keeps the package in {models_dir()}"
    )
    return _convert(checkpoint, options, name)


def named_package(name: str, options: ConversionOptions | None = None) -> Path:
    """Return the package of a published model, such as ``"mace-mpa-0"``; see `cached_package`."""
    from ..patch.model_names import find_checkpoint

    full_name, checkpoint = find_checkpoint(name)
    return cached_package(checkpoint, options, full_name)


def _place(name: str, digest: str, options: ConversionOptions) -> Path:
    key = json.dumps([digest, asdict(options), _converter()], sort_keys=True)
    stem = re.sub(r"\W+", "-", name).strip("-")[:100]
    return models_dir() / f"{stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}{SUFFIX}"


@cache
def _converter() -> dict[str, str | None]:
    """Return what a package depends on beside checkpoint and options."""
    room = Path(__file__).parents[1]
    text = hashlib.sha256()
    for folder in ("package", "patch", "problem"):
        for file in sorted((room / folder).glob("*.py")):
            text.update(file.read_bytes())
    libraries = (
        *("mace-torch", "nequip", "sevenn", "nequix", "e3nn"),
        *("les", "nequip-les", "graph-longrange"),
    )
    return {"mdcg": text.hexdigest(), **{name: installed_version(name) for name in libraries}}


def _convert(checkpoint: Path, options: ConversionOptions, name: str) -> Path:
    from .verification import write_verified

    model, digest = load_with_digest(checkpoint)
    package = convert_model(model, options, source=(checkpoint.name, digest))
    target = _place(name, digest, options)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with staged(target, overwrite=True) as (file,):  # another process may have made it meanwhile
        check = write_verified(package, file, model)
        if not check.passed:
            raise VerificationError(
                f"the package of {name} differs from the original, so it was not kept: "
                f"{check.summary()}"
            )
    return target
