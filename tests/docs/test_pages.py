"""Pages lead only to what exists: links, anchors, files, modules, tests, commands and recipes."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from squelch.cluster.cli import COMMANDS
from squelch.cluster.config import recipe_names
from squelch.cluster.sweep.file import sweep_names
from tests.tracked import tracked

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = "benchmarks|deploy|docs|research|squelch|tests"
LINKS = "actors|cluster|envs|learner"
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """The text without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as code hosts and the site make them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    shown = (re.sub(r"\[([^]]*)]\([^)]*\)|[`*]", r"\1", title).strip().lower() for title in titles)
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in shown}


def relative_links(page: Path) -> Iterator[tuple[Path, str]]:
    """The file and the anchor of every relative link and picture."""
    for target in re.findall(r"]\(([^)\s]+)\)", prose(page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


@every_page
def test_every_link_and_anchor_resolves(page: Path) -> None:
    for file, anchor in relative_links(page):
        assert file.exists(), f"{page.name}: {file} does not exist"
        assert not anchor or anchor in anchors(file), f"{page.name}: {file.name} has no heading #{anchor}"


@every_page
def test_every_command_and_recipe_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:^|`|    )squelch (\w+)", text, flags=re.MULTILINE)
    assert set(named) <= set(COMMANDS), set(named) - set(COMMANDS)
    recipes = set(re.findall(r"squelch (?:train|submit|sweep|config) ([a-z][\w.-]*)", text))
    known = {*recipe_names(), *sweep_names()}
    assert recipes <= known, recipes - known


@every_page
def test_every_file_module_and_test_exists(page: Path) -> None:
    """Words in capitals are placeholders, such as `squelch/cluster/recipes/NAME.yaml`."""
    text = page.read_text(encoding="utf-8")
    files = re.findall(rf"`((?:{FOLDERS})/(?:[\w./-]*(?:\.\w+|/))?)`", text)
    modules = [name.replace(".", "/") for name in re.findall(rf"python -m ((?:{FOLDERS})[\w.]*)", text)]
    named = {name.rstrip("./") for name in [*files, *modules] if not re.search("[A-Z]{2}", name)}
    assert {name for name in named if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()} == set()
    tests = set(re.findall(r"`(test_\w+)`", text))
    assert tests <= all_tests(), tests - all_tests()


@cache
def all_tests() -> set[str]:
    """Names of the test modules and of the tests."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    functions = (re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), flags=re.MULTILINE) for file in files)
    return {file.stem for file in files}.union(*functions)


def test_nothing_tells_anybody_to_install_the_strangers_package_squelch() -> None:
    """The distribution is `squelch-rl`; `squelch` alone is a SQL tool."""
    strangers = re.compile(r"(?:pip|uv|pipx) (?:add|install)[^\n`]*[ '\"]squelch(?![\w-])")
    assert strangers.search("pip install -U 'squelch[wandb]'") and not strangers.search("pip install squelch-rl")
    texts = (".md", ".py", ".html", ".yaml", ".yml", ".toml", ".sh")
    found = [ROOT / path for path in tracked() if path.suffix in texts and ROOT / path != Path(__file__)]
    assert [file for file in found if strangers.search(file.read_text(encoding="utf-8"))] == []


def test_every_file_in_the_tables_of_the_architecture_exists() -> None:
    """A bare name is a file of the folder that is named before it in its row."""
    for row in re.findall(r"^\|.*\|$", (ROOT / "docs" / "architecture.md").read_text(), flags=re.MULTILINE):
        room = ROOT
        for name in re.findall(rf"`((?:{FOLDERS})/[a-z_./0-9-]*|[a-z_0-9]+\.py)`", row):
            if "/" in name:
                parts = name.split("/")
                room = ROOT.joinpath(*parts[: 2 if parts[0] == "squelch" else 1])
            assert (ROOT / name).exists() or ("/" not in name and any(room.rglob(name))), f"{name} in {row}"


def test_no_text_names_a_file_by_a_link_at_the_top() -> None:
    """Git, tracebacks and diffs know `squelch/actors/some.py`; a metric such as `learner/loss` is no file."""
    linked = re.compile(rf"(?<![\w/.-])(?:{LINKS})/[\w./-]*\w")
    texts = [
        ROOT / path for path in tracked() if path.suffix in (".md", ".py", ".toml", ".yaml", ".yml", ".sh", ".txt")
    ]
    found = ((file, name) for file in texts for name in linked.findall(file.read_text(encoding="utf-8")))
    assert linked.findall("see actors/some.py.") == ["actors/some.py"]
    assert [(str(file), name) for file, name in found if (ROOT / name).exists()] == []


def test_every_page_is_in_an_index() -> None:
    indexes = [ROOT / "README.md", *(ROOT / "docs").rglob("index.md")]
    linked = {file for index in indexes for file, _ in relative_links(index)}
    assert [page.name for page in PAGES if page.is_relative_to(ROOT / "docs") and page not in {*linked, *indexes}] == []


def words(page: Path) -> int:
    """Of what readers see: comments are not counted."""
    return len(re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL).split())


def test_the_guide_is_short_enough_to_be_read() -> None:
    """What users read, and what a newcomer reads first."""
    guide = sum(words(page) for page in (ROOT / "docs" / "guide").glob("*.md"))
    _, _, found = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What it finds")
    found, _, _ = found.partition("[findings.md]")
    readme = words(ROOT / "README.md")
    assert guide <= 50_000 and readme <= 1_600 and len(found.split()) <= 200, (guide, readme, len(found.split()))


def test_the_research_is_short_enough_to_be_read() -> None:
    """Raw texts and long tables are data in `research/results/`; the first page is one screen."""
    pages = {page.name: words(page) for page in (ROOT / "docs" / "research").glob("*.md")}
    assert sum(pages.values()) <= 20_000 and pages["index.md"] <= 400, pages


def test_the_pages_of_clusters_lead_to_what_kubernetes_needs() -> None:
    guide = ROOT / "docs" / "guide"
    assert "(containers.md#metrics)" in (guide / "cluster.md").read_text(encoding="utf-8")
    _, _, down = (guide / "runbook.md").read_text(encoding="utf-8").partition("## SquelchEndpointDown")
    assert "kubectl -n squelch exec" in down


def test_a_script_is_an_input_of_import_for_each_trainer_that_has_one() -> None:
    _, _, page = (
        (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8").partition("## squelch import")
    )
    (row,) = re.findall(r"^\| `CONFIG` \| (.*) \|$", page.partition("\n## ")[0], re.MULTILINE)
    given = dict(re.findall(r"of (verl|prime-rl|OpenRLHF|TRL): ([^;]*)", row))
    assert [name for name, what in given.items() if "script" in what] == ["verl", "OpenRLHF", "TRL"]


def test_the_name_of_a_monitors_state_is_written_once_in_the_product() -> None:
    files = (*(ROOT / "squelch").rglob("*.py"), *(ROOT / "squelch").rglob("*.yaml"))
    assert [path.name for path in files if "squelch-monitor.state" in path.read_text(encoding="utf-8")] == [
        "monitor.py"
    ]
