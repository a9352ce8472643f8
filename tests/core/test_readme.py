"""What the README says must be so: settings, files, exported names."""

from __future__ import annotations

import re
from pathlib import Path

import mdcg
from mdcg.env import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_settings_table_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(MDCG_\w+)` \| (.*?) \| (.*?) \|$", README, re.MULTILINE)
    found = [(name, default.replace("`", ""), meaning) for name, default, meaning in rows]
    assert found == [(v.name, v.default, v.meaning) for v in VARIABLES]


def test_files_it_names_exist() -> None:
    for path in re.findall(r"bash ([\w./]+\.sh)", README):
        assert (ROOT / path).is_file(), path
    assert (ROOT / "examples" / "data").is_dir()


def test_names_it_imports_are_public() -> None:
    names = {
        name.strip()
        for line in re.findall(r"^from mdcg import (.+)$", README, re.MULTILINE)
        for name in line.split(",")
    }
    names |= set(re.findall(r"\bmdcg\.(patch_model|unpatch_model)\b", README))
    assert names
    assert names <= set(mdcg.__all__)
    for name in names:
        assert getattr(mdcg, name) is not None


def test_kernel_example_runs_as_written() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (code,) = [block for block in blocks if "ConvProblem.build" in block]
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert tuple(scope["out"].shape) == (100, 160)  # type: ignore[attr-defined]


def test_no_placeholder_is_left() -> None:
    assert not re.search(r"BENCH_|TODO|XXX", README)
