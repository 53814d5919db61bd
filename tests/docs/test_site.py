"""The site of the docs: it is built without a warning, can be searched, and loads nothing from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOREIGN = re.compile(
    r"""<(?:link|script|img)\b[^>]*\b(?:href|src)=["'](?:https?:)?//|@import|url\(["']?(?:https?:)?//"""
)
"""A stylesheet, script, picture or font of another host."""
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    command = re.search(r"^docs:.*\n\t\S+/sphinx-build (.*) docs build/docs$", (ROOT / "Makefile").read_text(), re.M)
    assert command, "the Makefile builds the site"
    words = [
        sys.executable,
        "-m",
        "sphinx",
        *command[1].split(),
        "-d",
        str(built / "cache"),
        "docs",
        str(built / "html"),
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return built / "html"


def test_every_page_is_built_and_can_be_searched(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page.with_suffix(".html")).is_file()} == set()
    index = (site / "searchindex.js").read_text()
    assert (site / "search.html").is_file() and all(f'"{page}"' in index for page in pages)


def test_the_sidebar_has_a_shelf_for_each_index_and_its_pages_below_it(site: Path) -> None:
    tree = (site / "guide" / "filter.html").read_text().partition('class="sidebar-tree"')[2].partition("</aside>")[0]
    shelves = re.findall(r'<li class="toctree-l1[^"]*"><a [^>]*>([^<]+)</a>', tree)
    assert shelves == ["Guide", "Reference", "Research", "Architecture"]
    assert re.findall(r'<li class="toctree-l2 current[^"]*"><a [^>]*>([^<]+)</a>', tree) == ["The filter"]
    assert len(re.findall("toctree-l2", tree)) > 40 and "toctree-l3" in tree, "the sections of the settings"


def test_a_link_shows_the_title_of_its_page(site: Path) -> None:
    shown = [
        text for page in site.rglob("*.html") for text in re.findall(r"<a [^>]*>(?:<[^>]+>)*([^<]+)<", page.read_text())
    ]
    assert shown and not [text for text in shown if re.fullmatch(r"[a-z-]+\.md", text)]


def test_the_first_page_has_the_readme_and_every_block_of_code_a_button(site: Path) -> None:
    first = (site / "index.html").read_text()
    assert "What is solved here" in first and "copy.js" in first
    assert "complaint" in (site / "searchindex.js").read_text().lower()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert [file.name for file in files if FOREIGN.search(file.read_text())] == []
