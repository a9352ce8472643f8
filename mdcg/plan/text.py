"""The base of all plans."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

P = TypeVar("P", bound="Plan")


class CudaTarget:
    """Base of classes that are made for one CUDA architecture."""

    capability: int

    @property
    def target(self) -> str:
        """Name of the architecture, such as ``"sm_90"`` or ``"gfx90a"``."""
        return f"gfx{self.capability:x}" if self.capability >= 0x700 else f"sm_{self.capability}"


class Plan:
    """Base of plans: frozen dataclasses of choices, with a text form that users can write."""

    def with_changes(self: P, **changes: object) -> P:
        """Return a copy with some fields replaced."""
        return replace(self, **changes)  # type: ignore[type-var]

    def to_json(self) -> str:
        """Return canonical JSON."""
        data = asdict(self)  # type: ignore[call-overload]
        return json.dumps(data, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls: type[P], text: str) -> P:
        """Rebuild from :meth:`to_json`; raise ValueError for a plan of another kind."""
        found: dict[str, Any] = json.loads(text)
        if found.keys() != {field.name for field in fields(cls)}:  # type: ignore[arg-type]
            raise ValueError(
                f"the plan is not a {cls.__name__}, which this operation needs on the device of "
                "its tensors: give one, or none"
            )
        return cls(**cls._parsed(found))

    @classmethod
    def _parsed(cls, found: dict[str, Any]) -> dict[str, Any]:
        """Return the fields; subclasses also build those that are objects themselves."""
        return found
