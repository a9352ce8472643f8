"""Commands and code of the documents run: see tests/documents.py."""

from __future__ import annotations

import re
from importlib.metadata import metadata

import pytest

from ..documents import (
    LANGUAGES,
    NAMES,
    ROOT,
    SHORTER,
    Reader,
    Step,
    follow,
    readers,
    steps,
    to_run,
)

__all__ = ["readers"]  # a fixture


@pytest.mark.parametrize("step", to_run(with_nequip=False))
def test_documents_run(step: Step, readers: dict[str, Reader]) -> None:
    follow(step, readers)


def test_every_block_is_run_or_says_why_not() -> None:
    all_steps = [step for name in NAMES for step in steps(name)]
    assert {step.language for step in all_steps} <= set(LANGUAGES)
    known = {"in", "needs", "not run", "file", "start", "alone"}
    for step in all_steps:
        assert set(step.marks) <= known, step
        assert step.marks.get("not run", "a reason"), step
        assert step.place or step.language in ("yaml", "text") or "not run" in step.marks, step
    text = "".join(step.start + step.text for step in all_steps)
    assert [long for long in SHORTER if not re.search(long, text)] == []


def test_extras_exist() -> None:
    named = {
        extra
        for name in NAMES
        for extras in re.findall(r'"\.\[([\w,]+)\]"', (ROOT / name).read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    assert {"mace", "nequip", "lammps"} <= named <= set(metadata("mdcg").get_all("Provides-Extra"))
