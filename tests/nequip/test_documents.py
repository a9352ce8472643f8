"""Commands and code of the documents for NequIP run: see tests/documents.py."""

from __future__ import annotations

import pytest

from ..documents import Reader, Step, follow, readers, to_run

__all__ = ["readers"]  # a fixture


@pytest.mark.parametrize("step", to_run(with_nequip=True))
def test_documents_run(step: Step, readers: dict[str, Reader]) -> None:
    follow(step, readers)
