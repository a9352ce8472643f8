"""The documentation: pages from docs/ without warnings, and notebooks that run."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value and "://" not in value:
                self.found.add(value.split("#")[0])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    program = Path(sys.executable).parent / "sphinx-build"
    command = [str(program), "-q", "-W", "--keep-going", "-c", str(ROOT / "docs"), str(ROOT)]
    done = subprocess.run(
        [*command, str(folder), "-d", str(tmp_path_factory.mktemp("doctrees"))],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


def test_links_between_pages(site: Path) -> None:
    pages = [
        page for page in site.rglob("*.html") if page.name not in ("genindex.html", "search.html")
    ]
    assert len(pages) > 20
    missing = []
    for page in pages:
        links = Links()
        links.feed(page.read_text(encoding="utf-8"))
        for link in links.found - {""}:
            target = (page.parent / link.split("?")[0]).resolve()
            if not target.exists():
                missing.append(f"{page.relative_to(site)}: {link}")
    assert not missing, "\n".join(missing)


def test_the_interface_is_documented(site: Path) -> None:
    import mdcg

    text = (site / "docs" / "api.html").read_text(encoding="utf-8")
    missing = [n for n in mdcg.__all__ if n != "__version__" and f'id="mdcg.{n}"' not in text]
    assert [n for n in missing if f'id="mdcg.errors.{n}"' not in text] == []


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks(notebook: Path, site: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [cell.get("outputs") for cell in cells if cell["cell_type"] == "code"]
    assert not any(outputs), "notebooks are kept without outputs"
    page = (site / "docs" / "notebooks" / f"{notebook.stem}.html").read_text(encoding="utf-8")
    assert "<img" in page, "no plot"
    assert "Traceback" not in page
