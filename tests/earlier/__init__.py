"""Copies of a run that earlier code wrote; README.md says how."""

import shutil
from pathlib import Path

HERE = Path(__file__).parent


def lay(folder: Path) -> Path:
    """Copies the run to `runs/run` in the folder, and the policy that it began with to `policy`. Returns the run."""
    shutil.copytree(HERE / "policy", folder / "policy")
    return Path(shutil.copytree(HERE / "run", folder / "runs" / "run"))
