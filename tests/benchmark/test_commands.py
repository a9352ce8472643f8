"""The commands of the documents that take too long to be run have the options that they name."""

from __future__ import annotations

import re
import shlex

import pytest
from benchmark import cli

from mdcg.cli.main import make_parser

from ..documents import ROOT, steps

DOCUMENTS = ("docs/benchmarks.md", "CONTRIBUTING.md", "examples/benchmark/README.md")
# Parsers by the first words of a command, with those of the words that they parse.
PARSERS = {
    "python examples/benchmark ": (cli.make_parser, []),
    "mdcg bench ": (make_parser, ["bench"]),
}


def commands() -> list[tuple[str, str]]:
    """Return the beginning and the rest of each command, without its comment."""
    found = []
    for document in DOCUMENTS:
        for step in steps(document):
            for line in step.text.replace("\\\n", " ").splitlines():
                for start in PARSERS:
                    rest = re.sub(r"\s#.*", "", line.removeprefix(start))
                    if line.startswith(start) and " " in rest:  # else only mentioned
                        found.append((start, rest))
    return found


def test_there_are_commands() -> None:
    assert {start for start, _ in commands()} == set(PARSERS)
    assert all((ROOT / document).is_file() for document in DOCUMENTS)


@pytest.mark.parametrize(("start", "rest"), commands())
def test_options_exist(start: str, rest: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = PARSERS[start]
    try:
        make().parse_args([*words, *shlex.split(rest)])
    except SystemExit:
        pytest.fail(f"{start}{rest}\n{capsys.readouterr().err}")
