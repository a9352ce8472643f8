"""The documentation: pages from docs/ without warnings, and notebooks that run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
USAGE = ROOT / "docs" / "usage"
# Pages of docs/usage that are not about one program.
GENERAL = {"index.md", "models.md", "comparison.md", "amd.md"}
HOSTS = sorted(page for page in USAGE.glob("*.md") if page.name not in GENERAL)
HEADINGS = ["Install", "First run", "Options", "Results", "Limits", "When something goes wrong"]

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


def _headings(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    return re.findall(r"^## (.+)$", text, re.MULTILINE)


@pytest.mark.parametrize("page", HOSTS, ids=lambda path: path.stem)
def test_pages_of_hosts_have_the_same_headings(page: Path) -> None:
    found = _headings(page)
    assert found[: len(HEADINGS)] == HEADINGS, page.name
    assert found[len(HEADINGS) :] in ([], ["Recipes"]), page.name


def test_every_page_of_a_host_is_named_by_the_others() -> None:
    overview = (USAGE / "index.md").read_text(encoding="utf-8")
    contents = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in HOSTS if f"]({page.name})" not in overview] == []
    assert [page.name for page in HOSTS if f"usage/{page.stem}\n" not in contents] == []


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks(notebook: Path, site: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [cell.get("outputs") for cell in cells if cell["cell_type"] == "code"]
    assert not any(outputs), "notebooks are kept without outputs"
    page = (site / "docs" / "notebooks" / f"{notebook.stem}.html").read_text(encoding="utf-8")
    assert "<img" in page, "no plot"
    assert "Traceback" not in page
