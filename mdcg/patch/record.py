"""Facts that mdcg-patch notes in a model; they travel with its pickle."""

from __future__ import annotations

import json
from typing import Any

import torch

__all__ = ["clear_record", "model_record", "set_model_record"]

#: Attribute of the model; JSON text, so that TorchScript and old readers have no trouble with it.
_ATTRIBUTE = "_mdcg_record"


def model_record(model: torch.nn.Module) -> dict[str, Any]:
    """Return what mdcg-patch noted (``head``, ``source``, ``versions``, ...), or an empty dict."""
    record: dict[str, Any] = json.loads(model.__dict__.get(_ATTRIBUTE, "{}"))
    return record


def set_model_record(model: torch.nn.Module, record: dict[str, Any]) -> None:
    """Note facts in a model."""
    model.__dict__[_ATTRIBUTE] = json.dumps(record, sort_keys=True)


def clear_record(model: torch.nn.Module) -> None:
    """Remove what was noted."""
    model.__dict__.pop(_ATTRIBUTE, None)
