"""Says why the driver ended, where Ray's client ended it without a word: the client exits at once when its connection
to the object store breaks, which may be before `cluster.fleet.ray_watch` has seen that the raylet is gone. No setting
turns that off: that connection does not ask which process the raylet is (`RAY_RAYLET_PID`, `local_ray.patient_client`).

    waits for                                 unblocked by                 on time-out
    its standard input's end                  the driver, or its death     -

A process of its own, beside the driver: it survives it, and is silent unless Ray's log of the driver ends with such an
exit. It runs `python -m squelch.cluster.loop.witness_process RUN_DIR LOGS DRIVER`, and loads what it needs only then.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from squelch.cluster.loop.witness import ENDED

_EXIT = re.compile(r"\] *(.*(?:Terminate the process|Failed to connect to GCS).*)")
"""A line of the log of Ray's client after which it exits."""
_LAST_BYTES = 64 << 10


def exit_of(logs: Path, driver: str) -> str | None:
    """The line with which Ray's client of this driver exited, from its log; None if it did not."""
    pid = driver.split()[1]
    for path in logs.glob(f"python-core-driver-*_{pid}.log"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        found = [match for line in lines[-3:] if (match := _EXIT.search(line))]
        if found:
            return found[-1][1].strip()
    return None


def tell(run_dir: Path, why: str, driver: str) -> str:
    """Writes trace and summary of the run; returns the line for the terminal."""
    from squelch.cluster.loop.exit_code import RayGone, outlook, with_trace
    from squelch.cluster.runs.ending import EndCause, Ending
    from squelch.cluster.runs.folder import SUMMARY, RunFolder
    from squelch.kit.archive.version import VERSION
    from squelch.kit.base.disk import write_whole

    text = f"Ray's node, on which this run is driven, is gone, and Ray's client ended the driver: {why}"
    steps = max((line["step"] for line in RunFolder(run_dir).metrics()), default=0)
    ending = Ending(EndCause.FAILED, text)
    summary = {"schema": VERSION, "run": run_dir.name, "driver": driver, "finished": False, "steps": steps}
    summary |= {"stopped": ending.text, "end_cause": ending.cause}
    said = f"failed: {with_trace(RayGone(text), run_dir)}. {outlook(run_dir)}"
    write_whole(run_dir / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return said


def main() -> None:
    """Waits for the driver's end and tells of it if Ray's client was the cause."""
    run_dir, logs, driver = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    if sys.stdin.buffer.read().endswith(ENDED):
        return
    if (why := exit_of(logs, driver)) is not None and not (run_dir / "summary.json").exists():
        from squelch.kit.process.terminal import say

        say(tell(run_dir, why, driver))


if __name__ == "__main__":
    main()
