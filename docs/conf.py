"""Sphinx's settings: ``sphinx-build -W -c docs . FOLDER`` in the clone makes the documentation.

The source folder is the clone, so that links between its Markdown files work here as they do there;
links to other files become downloads. Notebooks are executed (``-D nb_execution_mode=off``: not).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

ROOT = Path(__file__).resolve().parents[1]

project = "mdcg"
author = copyright = "mdcg developers"
release = re.search(r'__version__ = "(.+)"', (ROOT / "mdcg" / "_version.py").read_text()).group(1)
language = "en"

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc"]
root_doc = "docs/index"
include_patterns = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**"),
    *("examples/README.md", "examples/*/README.md", "lammps_plugin/README.md"),
    *("mdcg/package/FORMAT.md", "tests/emulator/README.md"),
]
suppress_warnings = ["myst.header"]  # the first heading of a notebook is that of its page

myst_heading_anchors = 3
nb_execution_mode = "force"
nb_output_stderr = "remove"  # warnings of other packages
nb_merge_streams = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings have them
numpydoc_show_class_members = False

html_theme = "furo"
html_title = f"mdcg {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "first-page.html"}
templates_path = ["templates"]

# Autodoc imports the installed package: the folder mdcg/ of the clone has no compiled core.
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != ROOT]


def setup(app: Any) -> None:
    """Show input of LAMMPS, which Pygments does not know, as it is."""
    app.add_lexer("lammps", TextLexer)
