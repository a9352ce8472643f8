"""Packages: models converted to one file that libmdcg evaluates without any framework.

The format of the file is described in ``FORMAT.md`` in this folder.
"""

from __future__ import annotations

from .convert import ConversionOptions, convert_checkpoint, convert_model
from .file import Package

__all__ = ["ConversionOptions", "Package", "convert_checkpoint", "convert_model"]
