"""The environment variables of an agent's process, and which of them no message shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from squelch.envs.agent.folders import TASK, TASK_FILE, all_is_kept, made_home
from squelch.envs.contract import Access
from squelch.envs.environment_variables import AGENT, ANTHROPIC, HOMES, KEYS, OPENAI, spare_loopback, without
from squelch.kit.untrusted.secrets import masked

_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def shared() -> dict[str, str]:
    """Ours, with two changes: no proxy stands before the endpoint, and the run's Python is found, after all others."""
    found = dict(os.environ)
    spare_loopback(found)
    found["PATH"] = os.pathsep.join(filter(None, (found.get("PATH", ""), os.path.dirname(sys.executable))))
    return found


def of_python(python: str) -> dict[str, str]:
    """Those of a process of that interpreter; of another than the run's, without what leads to the run's packages."""
    found = shared()
    if python:
        found = {name: value for name, value in found.items() if name not in _OURS}
    return found


def of_trajectory(access: Access, folder: str, kept: Sequence[str] = ()) -> dict[str, str]:
    """Those of a process that plays one trajectory, whose files go into `folder`, its home among them. `kept`: of our
    own home, as of `folders.made_home`."""
    return {
        **without(shared(), AGENT if all_is_kept(kept) else (*AGENT, *HOMES)),
        **dict.fromkeys(OPENAI, f"{access.base_url}/v1"),
        **dict.fromkeys(ANTHROPIC, access.base_url),
        **dict.fromkeys(KEYS, access.token),
        TASK: os.path.join(folder, TASK_FILE),
        "SQUELCH_RESULT": os.path.join(folder, "result.json"),
        "TMPDIR": folder,
        "HOME": made_home(folder, kept),
    }


def hidden(text: str, access: Access) -> str:
    """What an agent wrote, without secrets and its own token."""
    return masked(text.replace(access.token, "***"))
