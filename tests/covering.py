"""Parametrises tests by independent choices, tested in pairs instead of all combinations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(indirect: Sequence[str] = (), **choices: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrise a test so that every pair of values of two choices occurs at least once.

    ``indirect`` names the choices that go to the fixtures of these names.
    """
    values = [list(each) for each in choices.values()]
    rows, left = list(product(*(range(len(each)) for each in values))), set()

    def pairs(row: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(combinations(enumerate(row), 2))

    for row in rows:
        left |= pairs(row)
    taken = []
    while left:
        best = max(rows, key=lambda row: len(pairs(row) & left))  # the first of equals
        left -= pairs(best)
        taken.append([each[k] for each, k in zip(values, best, strict=True)])
    return pytest.mark.parametrize(list(choices), taken, indirect=indirect)
