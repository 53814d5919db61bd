"""The issue forms are valid, and the hook before a commit runs the lint of `make check`."""

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHECKER = Path(sysconfig.get_path("scripts")) / "check-jsonschema"


@pytest.mark.parametrize("form", ["bug.yml", "question.yml"])
def test_an_issue_form_fits_its_schema(form: str) -> None:
    words = [CHECKER, "--builtin-schema", "vendor.github-issue-forms", ROOT / ".github/ISSUE_TEMPLATE" / form]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_hook_runs_the_lint_of_make_check() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = {hook["entry"].split("/bin/")[1] for hook in repository["hooks"]}
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert lint and hooks <= {line.split("/bin/")[1].removesuffix(" .") for line in lint[1].splitlines()}
