"""The driver's handle of the process that outlives it (`witness_process`). Nothing here waits."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ENDED = b"ended"
"""What the driver sends before it ends in any way of its own."""
PROCESS = "squelch.cluster.loop.witness_process"


class Witness:
    """The handle of the process."""

    def __init__(self, run_dir: Path, logs: Path, driver: str) -> None:
        command = [sys.executable, "-P", "-m", PROCESS, str(run_dir), str(logs), driver]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """Tells the process that the driver ends by itself. A second call does nothing."""
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with suppress(OSError):  # it has been killed
                pipe.write(ENDED)
                pipe.close()
