"""What is used of Ray's private modules is there, and is asked for in one module."""

import re
from pathlib import Path

from squelch.cluster.fleet import ray_internals

ROOT = Path(__file__).parents[3]


def test_every_name_is_there() -> None:
    assert all(getattr(ray_internals, name) is not None for name in ray_internals.__all__)


def test_one_module_imports_private_modules_of_ray() -> None:
    files = (ROOT / "squelch").rglob("*.py")
    found = {
        str(file.relative_to(ROOT)) for file in files if re.search(r"(import|from) ray\._private", file.read_text())
    }
    assert found == {"squelch/cluster/fleet/ray_internals.py"}
