"""Published models by name: files that MACE, NequIP, SevenNet and Nequix download and keep.

Names, addresses and caches are those of the libraries, whose own functions do all downloads.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ._frameworks import import_mace, import_nequip, import_nequix, import_sevennet

_log = logging.getLogger("mdcg")
_SIZES = ("small", "medium", "large")
_NEQUIP = "nequip.net:"


@dataclass(frozen=True)
class NamedModel:
    """A published model: its names, the file in its library's cache, and how it gets there."""

    name: str
    spellings: tuple[str, ...]
    file: Path
    #: The library's function, which may return another path.
    download: Callable[[], Any]
    library: str


def find_checkpoint(text: str, *, download: bool = True) -> tuple[str, Path]:
    """Return the full name and the file of a published model, which is downloaded if need be.

    Without `download`, a file that is not on this machine is an error.

    Raises
    ------
    CheckpointError
        No library knows the name, or the file is not there and cannot be downloaded.
    MissingDependencyError
        The library of the name is not installed.
    """
    if text.startswith(_NEQUIP) or "/" in text:
        model = _nequip_model(text.removeprefix(_NEQUIP))
    else:
        model = _find(text)
    if model.file.is_file():
        return model.name, model.file
    where = f"{'in' if model.file.is_dir() else 'as'} {model.file}"
    if not download:
        raise CheckpointError(
            f"{text} is a published model that is not on this machine (it is looked for {where}), "
            f"and nothing is downloaded to describe it: mdcg convert {text} -o OUT.mdcg does that"
        )
    _log.info("%s downloads %s, once", model.library, text)
    # progress and licences; of SevenNet only that it failed, which the error below says
    said: Any = io.StringIO() if model.library == "sevenn" else sys.stderr
    try:
        with redirect_stdout(said):
            found = model.download()
    except Exception as error:  # of the network, in as many classes as there are libraries
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        why = str(reason).partition(" (Caused")[0][:150]
        raise CheckpointError(
            f"{text} is not on this machine, and {model.library} cannot download it "
            f"({type(reason).__name__}: {why}): it is looked for {where}, copy it there, or run "
            "this once where there is a network"
        ) from error
    path = Path(found) if isinstance(found, (str, Path)) else model.file
    if not path.is_file():
        raise CheckpointError(
            f"{model.library} has downloaded {text}, but not as {path}: give the file itself"
        )
    return model.name, path


def _normal(text: str) -> str:
    return text.lower().replace("_", "-")


def _find(text: str) -> NamedModel:
    """Return the model of a name of MACE, SevenNet or Nequix, or raise the nearest names."""
    wanted = _normal(text)
    libraries = {"sevenn": _sevennet_models, "nequix": _nequix_models, "mace": _mace_models}
    starts = {"7net-": "sevenn", "sevennet-": "sevenn", "nequix-": "nequix", "mace-": "mace"}
    only = [library for start, library in starts.items() if wanted.startswith(start)]
    libraries = {
        name: found
        for name, found in libraries.items()
        if (name in only if only else find_spec(name))
    }
    known: dict[str, NamedModel] = {}
    for models in libraries.values():
        for model in models():
            known |= {_normal(each): model for each in (*model.spellings, model.name)}
    if wanted in known:
        return known[wanted]
    near = [each for each in known if each.startswith(f"{wanted}-")]
    near += get_close_matches(wanted, known, n=12, cutoff=0.6)
    nearest: dict[str, str] = {}
    for each in near:
        nearest.setdefault(known[each].name, each)
    listing = f"the nearest names are {', '.join([*nearest.values()][:5])}"
    if not nearest:
        listing = f"known names are, among others, {', '.join([*known][:5])}"
    if not known:
        listing = "names of MACE, SevenNet and Nequix need their packages, which are not installed"
    raise CheckpointError(
        f"{text}: no such file, and no published model has this name: {listing}; models of "
        f"nequip.net are {_NEQUIP}GROUP/MODEL:VERSION"
    )


def _mace_models() -> Iterator[NamedModel]:
    import_mace("calculators.foundations_models")
    from mace.calculators import foundations_models as mace
    from mace.tools.utils import get_cache_dir

    cache = Path(get_cache_dir())

    def named(name: str, file: Path, download: Callable[[], Any], *spellings: str) -> NamedModel:
        return NamedModel(name, spellings, file, download, "mace")

    def last(url: str) -> str:
        return url.rpartition("/")[2].partition("?")[0]

    def plain(url: str) -> str:  # MACE leaves out other characters
        return "".join(c for c in url.rpartition("/")[2] if c.isalnum() or c == "_")

    mp = list(mace.mace_mp_urls)
    for key, url in mace.mace_mp_urls.items():
        name = key if key.startswith("mace-") else f"mace-mp-{key}"
        file = cache / plain(url)
        if key == "medium-mpa-0" and Path(mace.local_model_path).is_file():
            file = Path(mace.local_model_path)
        get: Callable[[], Any] = partial(mace.download_mace_mp_checkpoint, key)
        yield named(name, file, get, *_mp_spellings(key, mp))
    for key, url in mace.mace_off_urls.items():
        get = partial(_loading, mace.mace_off, model=key)
        yield named(f"mace-off-{key}", cache / last(url), get, f"mace-off23-{key}")
    for key, url in getattr(mace, "polar_model_urls", {}).items():
        get = partial(mace.download_mace_polar_checkpoint, key)
        yield named(f"mace-{key}", cache / plain(url), get, key)
    if hasattr(mace, "mace_omol"):
        file = cache / "MACE-omol-0-extra-large-1024.model"
        others = ("mace-omol-0", "mace-omol-extra-large", "mace-omol-0-extra-large")
        yield named("mace-omol", file, partial(_loading, mace.mace_omol), *others)
    file = Path(mace.module_dir) / "foundations_models" / "ani500k_large_CC.model"
    yield named("mace-anicc", file, partial(_loading, mace.mace_anicc))


def _mp_spellings(key: str, keys: list[str]) -> Iterator[str]:
    """Yield the other names of a model of ``mace_mp``, none of which fits two models."""
    size, _, rest = key.partition("-")
    if key in _SIZES:
        yield f"mace-mp-0-{key}"
    elif not key.startswith("mace-"):
        yield from (key, f"mace-{key}")
    if rest and size in _SIZES:
        yield from (f"mace-{rest}-{size}", f"mace-mp-{rest}-{size}")
        if sum(other.endswith(f"-{rest}") for other in keys) == 1:
            yield from (f"mace-{rest}", f"mace-mp-{rest}")


def _loading(function: Callable[..., Any], **options: Any) -> None:
    """Call a function of MACE that downloads a model and loads it, where only the file matters."""
    with suppress(pickle.UnpicklingError):  # torch loads no model unless MACE's import allows it
        function(device="cpu", return_raw_model=True, **options)


def _sevennet_models() -> Iterator[NamedModel]:
    import_sevennet()
    from sevenn import _const, util

    paths = [value for value in vars(_const).values() if isinstance(value, str)]
    paths = [path for path in paths if path.startswith(f"{_const._prefix}/")]
    folders = {re.sub("-+", "-", _normal(Path(path).parent.name)): path for path in paths}
    cache = Path("~/.cache/sevennet").expanduser()
    for name in util.get_available_pretrained_models():
        long = name.replace("7net", "sevennet", 1)
        dated = [f"{each}_11jul{y}2024" for each in (long, name) for y in ("y", "")]
        spellings = [long, *(dated if name == "7net-0" else [])]
        path = next((folders[s] for s in map(_normal, spellings) if s in folders), "")
        # SevenNet looks in its package, and in the cache where that cannot be written
        places = [Path(path), Path(path.replace(_const._prefix, str(cache)))] if path else [cache]
        file = next(filter(Path.is_file, places), places[-1])
        get = partial(util.pretrained_name_to_path, name)
        yield NamedModel(name, tuple(spellings), file, get, "sevenn")


def _nequix_models() -> Iterator[NamedModel]:
    import_nequix("calculator")
    from nequix.calculator import NequixCalculator, from_pretrained

    folder = Path("~/.cache/nequix/models").expanduser()
    for name in NequixCalculator.URLS:
        get = partial(from_pretrained, name, backend="jax", use_kernel=False)
        yield NamedModel(name, (), folder / f"{name}.nqx", get, "nequix")


def _nequip_model(identity: str) -> NamedModel:
    """Return a model of nequip.net; NequIP's cache is asked first, which needs no network."""
    import_nequip()
    from nequip.model.saved_models import load_utils
    from nequip.utils import model_cache

    def download() -> Path:
        with load_utils._get_model_file_path(_NEQUIP + identity) as path:
            return Path(path)

    folder = Path(model_cache.get_cache_dir())
    file = folder  # names of files depend on what nequip.net answers
    for record in sorted(folder.glob("*.metadata.json")):
        with suppress(ValueError, OSError, KeyError):
            facts = json.loads(record.read_text(encoding="utf-8"))
            if facts["model_id"] == identity:
                file = model_cache.get_cached_model(identity, facts["download_url"]) or file
    return NamedModel(_NEQUIP + identity, (), file, download, "nequip")
