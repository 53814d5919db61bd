"""What is wrong with what a block printed and left behind. Every function gives the faults as sentences."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from squelch.cluster.runs.folder import RunFolder
from squelch.learner.checkpoint.manifest import EXPORT, SHARDED, read_manifest

REPORT = "report.html"
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
_DIGEST = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b")
_VERDICT = re.compile(r"follows|DOES NOT FOLLOW")
_WARNING = re.compile(r"^\s*(?:\S+:\d+: )?(?:\w*warning\b:?|warn:)\s*(?P<text>.*)", re.IGNORECASE)


def output_faults(text: str, named: Sequence[str] = ()) -> list[str]:
    """Of what a command printed. `named`: what the page says, its marks too; a warning in it is no fault."""
    found = ["a traceback"] if "Traceback (most recent call last)" in text else []
    found += [line.strip() for line in text.splitlines() if line.startswith("no report")]
    page = [kinds(each) for each in named]
    for warning in filter(None, map(_warning, text.splitlines())):
        if not any(kinds(warning) in each or (each and each in kinds(warning)) for each in page):
            found.append(f"a warning that the page does not name: {warning}")
    return found


def _warning(line: str) -> str:
    found = _WARNING.match(line)
    return found["text"].strip() if found else ""


def kinds(text: str) -> str:
    """The text with numbers and digests replaced by their kind, and spaces as one."""
    return " ".join(_NUMBER.sub("#", _DIGEST.sub("@", text)).split())


def order_faults(shown: str, printed: str) -> list[str]:
    """The page's lines have to be among the printed ones, in this order, whatever their numbers. A short run does not
    know every value, so a printed line may lack parts (parted by two spaces), but not its first, nor most of them."""
    left = iter([_parts(line) for line in printed.splitlines()])
    for line in shown.splitlines():
        wanted = _parts(line) if line != "..." else []
        if wanted and not any(_is_part(each, wanted) for each in left):
            return [f"not printed, or not in this order: {line.strip()}"]
    return []


def _parts(line: str) -> list[str]:
    line = re.sub(r"^(step|warm-up) +", r"\1 ", line)
    return [kinds(_VERDICT.sub("VERDICT", part)) for part in re.split(r" {2,}", line.strip()) if part]


def _is_part(found: list[str], wanted: list[str]) -> bool:
    rest = iter(wanted)
    return found[:1] == wanted[:1] and 2 * len(found) > len(wanted) and all(part in rest for part in found)


def run_faults(folder: Path, named: Iterable[str] = ()) -> list[str]:
    """Of a run that a command made: a group that counted, a whole checkpoint, a report with figures, and no warning but
    one with words that the page's mark names."""
    run = RunFolder(folder)
    summary = run.summary()
    if summary is None:
        return [f"{folder.name} has no summary"]
    told = [text for text in summary.get("warnings", ()) if not any(words in text for words in named)]
    found = [f"{folder.name} warns: {text}" for text in told]
    index = run.index().to_pylist() if run.metrics() else []
    found += group_faults(index)
    if any(key.endswith("options.reward") and value for key, value in run.settings().items()):
        found += reward_faults(index)
    checkpoints = run.checkpoints()
    found += ["no checkpoint"] if not checkpoints else checkpoint_faults(folder / checkpoints[max(checkpoints)])
    found += report_faults(folder / REPORT)
    return found


def group_faults(index: Iterable[dict]) -> list[str]:
    """Of a run's groups: at least one has two members that ended without failure."""
    groups = list(index)
    if any(group["num_trajectories"] - group["num_failures"] >= 2 for group in groups):
        return []
    causes = {cause for group in groups for cause in group["failure_causes"]}
    return [f"no group of {len(groups)} counted; failures: {', '.join(sorted(causes)) or 'none'}"]


def reward_faults(index: Iterable[dict]) -> list[str]:
    """Of a run with reward functions: they tell completions apart."""
    returns = {value for group in index for value in group["returns"] if value is not None}
    return [] if len(returns) > 1 else [f"every reward is {', '.join(map(str, returns)) or 'missing'}"]


def checkpoint_faults(folder: Path) -> list[str]:
    """Of a checkpoint: it has its manifest, shards of the policy, and weights to load elsewhere."""
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        return [str(error)]
    found = [] if "policy" in manifest.modules else [f"{folder} holds no policy"]
    found += [] if any((folder / SHARDED).glob("*.safetensors")) else [f"{folder} holds no shards"]
    return found + ([] if any((folder / EXPORT).glob("*.safetensors")) else [f"{folder} holds no exported weights"])


def report_faults(page: Path) -> list[str]:
    """Of a report, in a browser: no error, and each figure is drawn."""
    from playwright.sync_api import sync_playwright

    if not page.is_file():
        return [f"{page.name} does not exist"]
    errors = list[str]()
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page()
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(page.resolve().as_uri())
        widths = tab.eval_on_selector_all("figure svg", "all => all.map(one => one.getBoundingClientRect().width)")
        browser.close()
    found = [f"{page.name} raises {error}" for error in errors]
    found += [] if widths else [f"{page.name} has no figure"]
    return found + [f"{page.name} has a figure that is not drawn"] * (not all(widths))
