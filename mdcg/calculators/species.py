"""Chemical elements of a structure as types of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from ase.calculators.calculator import InputError
from ase.data import atomic_numbers, chemical_symbols

IntArray = npt.NDArray[np.int64]


def types_by_number(
    names: Sequence[str], species_types: Mapping[str, str] | None = None
) -> IntArray:
    """Return the type of every atomic number, -1 where the model has none.

    `names` are the model's types in order, and `species_types` has the type name for each chemical
    symbol, None where type names are chemical symbols.
    """
    if species_types is None:
        strange = [name for name in names if name not in atomic_numbers]
        if strange:
            raise ValueError(
                f"the model's types are {', '.join(names)}, and {', '.join(strange)} are not "
                "chemical symbols: pass species_types={'H': name, ...}, the type name of "
                "every chemical symbol"
            )
        species_types = {name: name for name in names}
    found = np.full(len(chemical_symbols), -1, dtype=np.int64)
    for symbol, name in species_types.items():
        if symbol not in atomic_numbers:
            raise ValueError(f"species_types has {symbol!r}, which is not a chemical symbol")
        if name not in names:
            raise ValueError(
                f"species_types maps {symbol} to {name!r}, expected one of the model's types: "
                f"{', '.join(names)}"
            )
        found[atomic_numbers[symbol]] = names.index(name)
    return found


def known_symbols(types: IntArray) -> list[str]:
    """Return the chemical symbols that have a type."""
    return [chemical_symbols[number] for number in np.flatnonzero(types >= 0)]


def require_known(numbers: IntArray, types: IntArray) -> None:
    """Raise ``InputError`` if an atomic number has no type; see `types_by_number`."""
    inside = (numbers >= 0) & (numbers < len(types))
    if inside.all() and (types[numbers] >= 0).all():
        return
    unknown = sorted(
        {int(n) for n, ok in zip(numbers, inside, strict=True) if not ok or types[n] < 0}
    )
    names = [chemical_symbols[n] if 0 <= n < len(chemical_symbols) else f"Z={n}" for n in unknown]
    raise InputError(
        f"the model does not know {', '.join(names)}, only {', '.join(known_symbols(types))}"
    )
