"""What MDCGCalculator takes from other calculators: their models, options and keywords."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from glob import glob, has_magic
from inspect import Signature
from pathlib import Path
from typing import Any

from ase.data import chemical_symbols

from ..errors import UnsupportedProblemError, a_type
from ..package.file import is_package
from ..runtime.cache import is_name
from .evaluation import Options


@dataclass(frozen=True)
class _Keyword:
    """A keyword of MACECalculator: an option here, or its only value here and what to do."""

    option: str | None = None
    only: Any = None
    advice: str = "leave it out"


_UNITS = "multiply the results, which are in eV and Å"
_KERNELS = "leave it out, because mdcg's kernels take the place of these"
_COMPILED = "leave it out, because torch.compile does not compile mdcg's kernels"
_PADDED = "leave it out, because structures of any size run without padding"

#: Keywords of MACECalculator 0.3.16 that are no arguments of MDCGCalculator.
KEYWORDS: Mapping[str, _Keyword] = {
    "model_paths": _Keyword("model"),
    "model_path": _Keyword("model"),
    "models": _Keyword("model"),
    "default_dtype": _Keyword("dtype"),
    "model_type": _Keyword("model_type"),
    "energy_units_to_eV": _Keyword(only=1.0, advice=_UNITS),
    "length_units_to_A": _Keyword(only=1.0, advice=_UNITS),
    "compile_mode": _Keyword(only=None, advice=_COMPILED),
    "fullgraph": _Keyword(only=True, advice=_COMPILED),
    "enable_cueq": _Keyword(only=False, advice=_KERNELS),
    "enable_oeq": _Keyword(only=False, advice=_KERNELS),
    "pad_num_atoms": _Keyword(only=0, advice=_PADDED),
    "pad_num_edges": _Keyword(only=0, advice=_PADDED),
    "warmup": _Keyword(only=False, advice="call the calculator once instead"),
    "compute_atomic_stresses": _Keyword(
        only=False, advice="leave it out, and ask a package for stresses, which it has without it"
    ),
}

#: Classes that each model type of MACECalculator is for; those not named give energies.
_CLASSES_OF_TYPE: Mapping[str, tuple[str, ...] | None] = {
    "MACE": None,
    "PolarMACE": ("PolarMACE",),
    "EnergyDipoleMACE": ("EnergyDipolesMACE",),
    "DipoleMACE": ("AtomicDipolesMACE",),
    "DipolePolarizabilityMACE": ("AtomicDielectricMACE",),
}


def members_and_options(
    model: Any, mace: Mapping[str, Any], options: Options, own: Signature
) -> tuple[list[Any], Options]:
    """Return the models, and options with those that MACE's keywords state.

    What a calculator among the models states is an option unless another was given. `own` is the
    signature of MDCGCalculator, for messages.
    """
    known = {"model": model, "dtype": options.dtype, "model_type": None}
    named = _options_of_keywords(mace, known, own)
    models, stated = models_of(named["model"])
    changes = {name: value for name, value in stated.items() if getattr(options, name) is None}
    changes |= {name: named[name] for name in ("dtype", "model_type")}
    return models if isinstance(models, list) else [models], replace(options, **changes)


def _options_of_keywords(
    given: Mapping[str, Any], known: Mapping[str, Any], own: Signature
) -> dict[str, Any]:
    """Return options of MDCGCalculator, some of them from keywords of MACECalculator.

    `known` has the options that were given by mdcg's names, or None. Raises ``TypeError`` for an
    unknown keyword and for an option that was given twice, and ``ValueError`` for a value that has
    no meaning here.
    """
    found = dict(known)
    names = {option: option for option, value in known.items() if value is not None}
    for name, value in given.items():
        keyword = KEYWORDS.get(name)
        if keyword is None:
            *arguments, _ = own.parameters
            near = get_close_matches(name, [*arguments, *KEYWORDS], n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise TypeError(
                f"MDCGCalculator was given {name}={value!r}, expected one of its own arguments "
                f"({', '.join(arguments)}) or of MACECalculator's ({', '.join(KEYWORDS)}){hint}"
            )
        if keyword.option is None:
            _require_only(name, value, "MDCGCalculator")
        elif value is not None and value != "":
            if keyword.option in names:
                other = names[keyword.option]
                raise TypeError(f"{other} and {name} were both given, expected one of them")
            names[keyword.option], found[keyword.option] = name, value
    return found


def _require_only(name: str, value: Any, of: str) -> None:
    keyword = KEYWORDS[name]
    if value != keyword.only:
        raise ValueError(
            f"{name} of {of} is {value!r}, expected {keyword.only!r}, which is the only value that "
            f"has a meaning in mdcg: {keyword.advice}"
        )


def check_model_type(model_type: str | None, model_class: str) -> None:
    """Raise ``ValueError`` if a model is not of the type that MACECalculator was told."""
    if model_type is None:
        return
    if model_type not in _CLASSES_OF_TYPE:
        raise ValueError(
            f"model_type is {model_type!r}, expected one of: {', '.join(_CLASSES_OF_TYPE)}"
        )
    classes = _CLASSES_OF_TYPE[model_type]
    if classes is not None and model_class not in classes:
        raise ValueError(
            f"model_type is {model_type!r}, but the model is a {model_class}: leave out "
            "model_type, because mdcg reads it from the model"
        )


def _of_mace(calculator: Any) -> tuple[list[Any], dict[str, Any]]:
    if getattr(calculator, "use_compile", False):
        raise UnsupportedProblemError(
            "the models of the MACECalculator were compiled (compile_mode), so mdcg cannot patch "
            "them: give a MACECalculator that was made without compile_mode"
        )
    for name in ("energy_units_to_eV", "length_units_to_A", "compute_atomic_stresses"):
        _require_only(name, getattr(calculator, name, KEYWORDS[name].only), "the MACECalculator")
    names = ("head", "info_keys", "arrays_keys")
    options = {name: getattr(calculator, name, None) for name in names}
    # an evaluation adds the key of charges, which models of energies do not read
    added = (getattr(calculator, "charges_key", None), "charges")
    arrays = options["arrays_keys"] or {}
    options["arrays_keys"] = {key: arrays[key] for key in arrays if (key, arrays[key]) != added}
    return list(calculator.models), options


def _of_nequip(calculator: Any) -> tuple[list[Any], dict[str, Any]]:
    if type(calculator.model).__name__ != "GraphModel":
        raise UnsupportedProblemError(
            f"the NequIPCalculator has {a_type(calculator.model)}, which is compiled, so mdcg "
            "cannot patch it: give the .ckpt or .nequip.zip that it was made from"
        )
    for name in ("energy_units_to_eV", "length_units_to_A"):
        _require_only(name, getattr(calculator, name, 1.0), "the NequIPCalculator")
    for transform in calculator.transforms:
        types = getattr(transform, "lookup_table", None)  # by atomic number
        if types is not None:
            names = transform.model_type_names
            found = {chemical_symbols[z]: names[t] for z, t in enumerate(types.tolist()) if t >= 0}
            return [calculator.model], {"species_types": found}
    return [calculator.model], {}


def _of_sevennet(calculator: Any) -> tuple[list[Any], dict[str, Any]]:
    return [calculator.model], {"head": getattr(calculator, "modal", None)}


#: Calculators by the name of their class or a base of it: their models, and their options.
_READERS: Mapping[str, Callable[[Any], tuple[list[Any], dict[str, Any]]]] = {
    "MACECalculator": _of_mace,
    "NequIPCalculator": _of_nequip,
    "SevenNetCalculator": _of_sevennet,
}


def models_of(given: Any) -> tuple[Any, dict[str, Any]]:
    """Return one model or a list of models, and options that calculators among them state.

    Models are paths, names and torch modules. Calculators become their models, and a text with
    wildcards becomes the files that it matches. Raises ``TypeError`` for anything else.
    """
    if given is None:
        raise TypeError(
            "no model was given, expected one as the first argument, as model_paths or as models"
        )
    if isinstance(given, (str, os.PathLike)):
        found = _matching(os.fspath(given))
        return (given, {}) if found is None else (found[0] if len(found) == 1 else found, {})
    if isinstance(given, (list, tuple)):
        models: list[Any] = []
        options: dict[str, Any] = {}
        for each in given:
            model, more = models_of(each)
            models += model if isinstance(model, list) else [model]
            for name, value in more.items():
                if options.setdefault(name, value) != value:
                    raise ValueError(
                        f"calculators of the committee have {name} {options[name]!r} and "
                        f"{value!r}, expected one value: give their models and {name}"
                    )
        return models, options
    names = [each.__name__ for each in type(given).__mro__ if each.__name__ in _READERS]
    if names:
        models, options = _READERS[names[0]](given)
        return models[0] if len(models) == 1 else models, options
    if callable(getattr(given, "named_modules", None)):
        return given, {}
    parts = " (give one of the calculators that it adds)" if hasattr(given, "mixer") else ""
    raise TypeError(
        f"model is {a_type(given)}, expected the path of a package or checkpoint, the name of a "
        "published model, a torch model of MACE, NequIP or SevenNet, one of their calculators"
        f"{parts}, or a list of these"
    )


def _matching(text: str) -> list[str] | None:
    """Return the files that a text with wildcards matches, or None for an ordinary path or name."""
    if not has_magic(text) or Path(text).exists():
        return None
    found = sorted(glob(text))  # noqa: PTH207  (the pattern may be absolute)
    if not found:
        raise ValueError(f"no file matches {text!r}, expected one package or checkpoint or more")
    return found


def are_packages(models: Sequence[Any]) -> bool:
    """Return whether models are packages, or names of published ones, which become packages.

    Raises ``ValueError`` if some are and others are not.
    """
    kinds = [is_name(m) or (isinstance(m, (str, os.PathLike)) and is_package(m)) for m in models]
    if any(kinds) and not all(kinds):
        other = models[kinds.index(False)]
        named = repr(other) if isinstance(other, (str, os.PathLike)) else a_type(other)
        raise ValueError(
            f"a committee has the member {named}, expected paths of packages (.mdcg), as "
            "mdcg-patch writes them, or names of published models, or none of these at all"
        )
    return all(kinds)
