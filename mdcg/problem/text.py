"""The base of all problems, and names of dtypes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

P = TypeVar("P", bound="ProblemText")

DTYPES = ("float32", "float64")
_SHORT = {"fp32": "float32", "fp64": "float64"}


def check_dtype(dtype: str) -> None:
    """Raise ValueError unless kernels exist for a dtype."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")


def dtype_of(word: object) -> str:
    """Return ``"float32"`` or ``"float64"`` for one of these, fp32, fp64, or a torch dtype."""
    given = str(word).removeprefix("torch.")
    name = _SHORT.get(given, given)
    if name not in DTYPES:
        raise ValueError(f"dtype is {given!r}, expected float32 (or fp32) or float64 (or fp64)")
    return name


class ProblemText:
    """Base of the frozen dataclasses of problems: canonical text and a key."""

    _json: str

    def _data(self) -> dict[str, Any]:
        """Return plain values from which :meth:`_of` makes an equal problem."""
        raise NotImplementedError

    @classmethod
    def _of(cls: type[P], data: Mapping[str, Any]) -> P:
        raise NotImplementedError

    def _set_text(self) -> None:
        text = json.dumps(self._data(), separators=(",", ":"), sort_keys=True)
        object.__setattr__(self, "_json", text)

    @classmethod
    def from_json(cls: type[P], text: str) -> P:
        """Rebuild a problem from :meth:`to_json`; raise ValueError for other texts."""
        try:
            return cls._of(json.loads(text))
        except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"not a problem description of this version of mdcg: {error}"
            ) from error

    def to_json(self) -> str:
        """Return the canonical JSON text: equal problems give equal text."""
        return self._json

    def key(self) -> str:
        """Return 16 hexadecimal digits that identify the problem."""
        return hashlib.sha256(self._json.encode()).hexdigest()[:16]
