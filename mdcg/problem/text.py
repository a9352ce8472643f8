"""The base of all problems: canonical text and a key."""

from __future__ import annotations

import hashlib
import json
from typing import Any

DTYPES = ("float32", "float64")


def check_dtype(dtype: str) -> None:
    """Raise ValueError unless kernels exist for a type."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")


class ProblemText:
    """Base of the frozen dataclasses of problems; their text is made with the object."""

    _json: str

    def _set_text(self, **data: Any) -> None:
        text = json.dumps(data, separators=(",", ":"), sort_keys=True)
        object.__setattr__(self, "_json", text)

    def to_json(self) -> str:
        """Return the canonical JSON text: equal problems give equal text."""
        return self._json

    def key(self) -> str:
        """Return 16 hexadecimal digits that identify the problem."""
        return hashlib.sha256(self._json.encode()).hexdigest()[:16]
