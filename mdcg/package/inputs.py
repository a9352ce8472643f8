"""Inputs of a system besides its atoms, such as a charge, and the hidden units they turn into."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core

Array = NDArray[np.float64]

#: Inputs that are whole numbers, also where a model evaluates a continuous function of them.
WHOLE = ("total_charge", "total_spin", "charge", "spin")
#: Inputs that are multiplicities 2S+1.
MULTIPLICITIES = ("total_spin", "spin")
#: Inputs that are the components of an external field, the slope of its potential in eV/Å/e.
FIELD_COMPONENTS = ("external_field_x", "external_field_y", "external_field_z")


@dataclass(frozen=True)
class InputLayer:
    """``factor * activation(x @ weight + bias)``."""

    weight: Array  # [n_in, n_out]
    bias: Array | None = None  # [n_out]
    activation: str = "none"
    factor: float = 1.0


@dataclass(frozen=True)
class SystemInput:
    """An input, and what it adds to the hidden units: a row of its value, or layers, or nothing."""

    name: str
    whole: bool
    lowest: int | None = None  # the smallest value; None: any
    count: int | None = None  # the values are lowest .. lowest + count - 1; None: no largest
    default: float | None = None
    rows: Array | None = None  # [count, units]
    layers: tuple[InputLayer, ...] = ()

    @classmethod
    def of_entry(cls, entry: Mapping[str, Any]) -> SystemInput:
        """Return an entry of ``inputs`` of a manifest, without what it adds to hidden units."""
        names = ("lowest", "count", "default")
        return cls(entry["name"], entry["whole"], **{n: entry[n] for n in names if n in entry})

    def __post_init__(self) -> None:
        if self.default is not None and not self.takes(self.default):
            raise ValueError(f"{self.name} is {self.default:g}, expected {self.expected}")

    def takes(self, value: float) -> bool:
        """Return whether the model can be evaluated with a value."""
        return _core.input_takes(self.whole, self.lowest, self.count, value)

    @property
    def expected(self) -> str:
        """Values that the model can be evaluated with, for messages."""
        return _core.input_range(self.whole, self.lowest, self.count)


@dataclass(frozen=True)
class InputNetwork:
    """All inputs of a model.

    With hidden units, tensors depend linearly on ``factor * activation(sum of what inputs add)``.
    If an input has no default, tensors of the package are those of units that are zero.
    """

    inputs: tuple[SystemInput, ...]
    units: int = 0
    activation: str = "none"
    factor: float = 1.0

    @property
    def has_defaults(self) -> bool:
        """Whether each input has a default."""
        return all(each.default is not None for each in self.inputs)

    def entries(
        self,
    ) -> tuple[list[dict[str, Any]], dict[str, Any] | None, dict[str, Array]]:
        """Return the fields ``inputs`` and ``input_network`` of a manifest, and their tensors."""
        tensors: dict[str, Array] = {}

        def tensor(name: str, values: Array) -> str:
            tensors[name] = np.asarray(values, dtype=np.float64)
            return name

        entries = []
        for number, each in enumerate(self.inputs):
            entry: dict[str, Any] = {"name": each.name, "whole": each.whole}
            limits = {"lowest": each.lowest, "count": each.count}
            entry |= {key: value for key, value in limits.items() if value is not None}
            if each.default is not None:
                entry["default"] = int(each.default) if each.whole else float(each.default)
            at = f"inputs.{number}"
            if each.rows is not None:
                entry["embedding"] = tensor(f"{at}.embedding", each.rows)
            if each.layers:
                entry["layers"] = []
            for step, layer in enumerate(each.layers):
                found: dict[str, Any] = {"weight": tensor(f"{at}.{step}.weight", layer.weight)}
                if layer.bias is not None:
                    found["bias"] = tensor(f"{at}.{step}.bias", layer.bias)
                if layer.activation != "none":
                    found |= {"activation": layer.activation, "factor": layer.factor}
                entry["layers"].append(found)
            entries.append(entry)
        if not self.units:
            return entries, None, tensors
        network = {"units": self.units, "activation": self.activation, "factor": self.factor}
        return entries, network, tensors


def system_input(
    fields: Mapping[str, float],
    name: str,
    lowest: int | None = None,
    count: int | None = None,
    **more: Any,
) -> SystemInput:
    """Return an input with its default, if `fields` has one. Counted inputs are whole numbers."""
    whole = count is not None or name in WHOLE
    if lowest is None and name in MULTIPLICITIES:
        lowest = 1
    return SystemInput(name, whole, lowest, count, fields.get(name), **more)


def input_text(entry: Mapping[str, Any]) -> str:
    """Return a line about an entry of ``inputs`` of a manifest."""
    found = SystemInput.of_entry(entry)
    default = "which must be given: it has no default"
    if found.default is not None:
        default = f"default {found.default:g}"
    return f"reads of each structure: {found.name}, {found.expected}, {default}"


def lowest_values(model: Any) -> dict[str, int]:
    """Return the lowest value of each input of the structure that a model reads."""
    from ..patch.models import categorical_fields

    specs: Mapping[str, Mapping[str, Any]] = getattr(model, "embedding_specs", None) or {}
    found = {n: -spec.get("offset", 0) for n, spec in specs.items() if spec["per"] == "graph"}
    return found | {name: lowest for name, (lowest, _) in categorical_fields(model).items()}


def refuse_unknown(fields: Mapping[str, float], known: Collection[str]) -> None:
    """Raise ValueError if a value is given for an input that the model does not read."""
    unknown = sorted(set(fields) - set(known))
    if unknown:
        expected = ", ".join(sorted(known)) or "none"
        raise ValueError(f"the model reads no {', '.join(unknown)}, expected {expected}")


def neutral_values(lowest: Mapping[str, int | None]) -> dict[str, int]:
    """Return charge 0, multiplicity 1, 0 for others, or the lowest value if it is higher."""
    return {name: max(int(name in MULTIPLICITIES), low or 0) for name, low in lowest.items()}


def values_to_compare(inputs: Sequence[Mapping[str, Any]], count: int) -> list[dict[str, float]]:
    """Return values of inputs, entries of a manifest, for so many structures.

    Every other structure has the defaults, as far as there are any. There is no external field.
    """
    choices: list[list[float]] = []
    for each in inputs:
        default = each.get("default")
        if each["name"] in FIELD_COMPONENTS:
            choices.append([0.0, 0.0])
            continue
        lowest, number = each.get("lowest"), each.get("count")
        if lowest is None or number is None:
            middle = default if default is not None else 1
            found = [middle, middle + 1, middle + 2 if middle == each.get("lowest") else middle - 1]
            found.append(middle + 3)
        else:
            found = [lowest, lowest + number - 1, lowest + number // 2]
            found.insert(0, lowest + number // 3 if default is None else default)
        choices.append(found)

    def value(n: int, place: int) -> float:
        own = choices[place]
        if inputs[place].get("default") is None:
            return own[(n + place) % len(own)]
        return own[0] if n % 2 == 0 else own[1 + (n // 2 + place) % (len(own) - 1)]

    names = [each["name"] for each in inputs]
    return [{name: value(n, place) for place, name in enumerate(names)} for n in range(count)]
