"""What structures state of a model's inputs, such as a charge, an external field or a head."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import InputError

from ..package.inputs import FIELD_COMPONENTS, SystemInput
from .evaluation import FloatArray, Options

# Keys of `atoms.info` that MACECalculator reads for inputs of MACE's models.
_KEYS = {"total_charge": "charge", "total_spin": "spin"}
_KEYS_OF_INPUT = _KEYS | {key: name for name, key in _KEYS.items()}
#: Keys in ``atoms.info``: an external field, three numbers in eV/Å/e; a head (`stated_head`).
EXTERNAL_FIELD, HEAD = "external_field", "head"


def keys_of_input(name: str, keys: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the keys of ``atoms.info`` for an input of a model, in the order of preference.

    `keys` has the only key of some inputs.
    """
    if keys and name in keys:
        return (keys[name],)
    if name in FIELD_COMPONENTS:
        return name, *keys_of_input(EXTERNAL_FIELD, keys)
    other = _KEYS_OF_INPUT.get(name)
    return (name,) if other is None else (other, name)


def inputs_of_manifest(manifest: Mapping[str, Any]) -> list[SystemInput]:
    """Return the inputs of a package, in its order."""
    return [SystemInput.of_entry(each) for each in manifest.get("inputs") or ()]


def stated_value(
    name: str,
    stated: Mapping[str, Any],
    keys: Mapping[str, str] | None = None,
    systems: int = 1,
) -> tuple[str, Any] | None:
    """Return the key and the value that a structure states for an input of a model, or None.

    `stated` is ``atoms.info`` or a similar mapping, of one structure or for so many `systems`; None
    states nothing. `keys` as in :func:`keys_of_input`. Raises ``InputError`` if two keys have
    different values.
    """
    fields = keys_of_input(EXTERNAL_FIELD, keys) if name in FIELD_COMPONENTS else ()
    found = [
        (key, _component(key, name, value, systems) if key in fields else _plain(value))
        for key, value in ((key, stated.get(key)) for key in keys_of_input(name, keys))
        if value is not None
    ]
    for key, value in found[1:]:
        if not _agree(value, found[0][1]):
            raise InputError(
                f"{found[0][0]} of the structure is {found[0][1]!r} and {key} is {value!r}, which "
                "are one input of the model, expected one value: remove one of them"
            )
    return found[0] if found else None


def _plain(value: Any) -> Any:
    """Return numbers of Python in place of arrays and tensors."""
    return value.tolist() if hasattr(value, "tolist") else value


def _component(key: str, name: str, value: Any, systems: int) -> Any:
    """Return what an external field, the value of a key, states for one of its components."""
    value = _plain(value)
    try:
        rows = _as_numbers(value).reshape(-1, 3)
    except (TypeError, ValueError):
        rows = np.full((1, 3), np.nan)
    if not np.isfinite(rows).all() or len(rows) not in (1, systems):
        each = f", or such a row for each of {systems} systems" if systems > 1 else ""
        raise InputError(
            f"{key} of the structure is {value!r}, expected three finite numbers in eV/Å/e: the "
            f"slope of the potential along x, y and z{each}"
        )
    return rows[:, FIELD_COMPONENTS.index(name)].tolist()


def input_values(
    inputs: Sequence[SystemInput],
    stated: Mapping[str, Any],
    package: str | None = None,
    place: str = "atoms.info[{!r}]",
    systems: int | None = None,
    keys: Mapping[str, str] | None = None,
) -> FloatArray:
    """Return the value of each input of a model for a structure.

    Parameters
    ----------
    inputs : sequence of SystemInput
        Those of the model, in its order.
    stated : mapping
        ``atoms.info`` or similar; see :func:`stated_value`.
    package : str, optional
        Name of the package, if the model is one.
    place : str
        Where the value of a key can be stated, for messages.
    systems : int, optional
        The mapping has a value, or one value for each of so many structures.
    keys : mapping, optional
        See :func:`keys_of_input`.

    Returns
    -------
    array
        Shape (n_inputs,), or (systems, n_inputs).

    Raises
    ------
    ase.calculators.calculator.InputError
        A value is missing and has no default, or the model does not take it.
    """
    shape = () if systems is None else (systems,)
    values = np.empty((*shape, len(inputs)))
    for number, each in enumerate(inputs):
        found = stated_value(each.name, stated, keys, systems or 1)
        if found is None:
            if each.default is None:
                where = " or ".join(place.format(key) for key in keys_of_input(each.name, keys))
                again = f", or convert the model again with mdcg-patch --set {each.name}=VALUE"
                raise InputError(
                    f"the structure has no {each.name}, which {package or 'the model'} reads and "
                    f"has no default for: set {where} to {each.expected}{again if package else ''}"
                )
            values[..., number] = each.default
            continue
        values[..., number] = _numbers(*found, each, shape)
    return values


def _numbers(key: str, value: Any, of: SystemInput, shape: tuple[int, ...]) -> FloatArray:
    """Return a stated value as numbers that a model takes."""
    try:
        numbers = _as_numbers(value)
        numbers = np.broadcast_to(numbers.reshape(shape if numbers.size > 1 else ()), shape)
        usable = all(of.takes(float(number)) for number in numbers.flat)
    except (TypeError, ValueError):
        usable = False
    if not usable:
        each = f"one number for all or {shape[0]} for the systems, each " if shape else ""
        raise InputError(f"{key} of the structure is {value!r}, expected {each}{of.expected}")
    return numbers


def refuse_unread(stated: Mapping[str, Any], names: Iterable[str], package: str) -> None:
    """Raise ValueError if inputs are stated under keys that no input of these names has."""
    known = dict.fromkeys(key for name in names for key in keys_of_input(name))
    if unread := sorted(set(stated) - set(known)):
        raise ValueError(
            f"inputs has {', '.join(unread)}, which {package} does not read, expected "
            f"{', '.join(known) or 'none'}"
        )


def stated_inputs(
    names: Iterable[str], stated: Mapping[str, Any], keys: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what a structure states of inputs by its keys, unchecked; see `stated_value`."""
    places = (key for name in names for key in keys_of_input(name, keys))
    return {key: _plain(stated[key]) for key in places if key in stated}


def stated_head(atoms: Atoms, options: Options) -> str | None:
    """Return the head that a structure states, or None.

    Like in MACE's calculator, a head that the calculator was given comes before
    ``atoms.info["head"]``, which frames of training data have. A key in `info_keys` is read always.
    """
    if options.head is not None and HEAD not in (options.info_keys or {}):
        return None
    found = stated_value(HEAD, atoms.info, options.info_keys)
    return None if found is None else str(found[1])


def refuse_field(
    stated: Mapping[str, Any], model: str, keys: Mapping[str, str] | None = None
) -> None:
    """Raise ``InputError`` if a structure states an external field, which a model cannot take."""
    for key in dict.fromkeys(key for n in FIELD_COMPONENTS for key in keys_of_input(n, keys)):
        field = _plain(stated.get(key))
        if field is not None and not _agree(field, 0):
            raise InputError(
                f"{key} of the structure is {field!r}, and {model} takes no external field: remove "
                "it, or use a model that takes one, such as PolarMACE"
            )


def check_fixed_inputs(
    fixed: Mapping[str, int],
    stated: Mapping[str, Any],
    package: str,
    reads: Container[str] = (),
    keys: Mapping[str, str] | None = None,
) -> None:
    """Raise ``InputError`` if a structure states what a package cannot take.

    That is another value than the package was made for, and an external field if the names that it
    `reads` have none.

    `fixed` are the values that the conversion fixed. `stated` is ``atoms.info`` or a similar
    mapping, with a number, or a number for each of several structures; None states nothing. `keys`
    as in :func:`keys_of_input`.
    """
    if FIELD_COMPONENTS[0] not in reads:
        refuse_field(stated, package, keys)
    for name, value in fixed.items():
        for key in keys_of_input(name, keys):
            plain = _plain(stated.get(key))
            if plain is not None and not _agree(plain, value):
                raise InputError(
                    f"{key} of the structure is {plain!r}, and {package} was made for "
                    f"{name}={value}, which is fixed: evaluate the checkpoint itself, or convert "
                    f"it again with this version of mdcg, whose packages take any value"
                )


def _agree(found: Any, value: Any) -> bool:
    """Return whether two values are the same number or numbers."""
    try:
        return bool((_as_numbers(found) == _as_numbers(value)).all())
    except (TypeError, ValueError):
        return False


def _as_numbers(value: Any) -> FloatArray:
    """Return a number or numbers; unlike NumPy, raise ``TypeError`` for text and truth values."""
    found = np.asarray(value)
    if found.dtype.kind not in "iuf":
        raise TypeError(f"{value!r} is no number")
    return found.astype(np.float64)
