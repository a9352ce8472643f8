"""The record that mdcg-patch stores in a model, and that is pickled with it."""

from __future__ import annotations

import json
from typing import Any

import torch

from ..errors import printable_values

#: Attribute of the model; JSON text, which TorchScript and older readers accept.
_ATTRIBUTE = "_mdcg_record"


def model_record(model: torch.nn.Module) -> dict[str, Any]:
    """Return the record (``head``, ``source``, ``versions``, ...), or an empty dict."""
    record: dict[str, Any] = printable_values(json.loads(model.__dict__.get(_ATTRIBUTE, "{}")))
    return record


def set_model_record(model: torch.nn.Module, record: dict[str, Any]) -> None:
    model.__dict__[_ATTRIBUTE] = json.dumps(record, sort_keys=True)


def clear_record(model: torch.nn.Module) -> None:
    model.__dict__.pop(_ATTRIBUTE, None)
