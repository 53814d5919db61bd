"""A command under its keeper (`keeper.py`): what it writes is bounded, and nothing of it outlives it.

| waits for | unblocked by | bound, and what then |
|---|---|---|
| the command's end | the command, or `close` | the caller's |
| the keeper's end, after the command's or `close` | the keeper | `END_S`, then it is killed; the command dies with it |
| the rest of what was written | the pipe's end | `END_S`; what has come by then counts |
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from squelch.kit.untrusted.files import shortened

END_S = 8.0
"""Seconds for the end of a keeper that was told to end; above `keeper.KILL_S`."""
ERROR_BYTES = 16 * 2**10
"""Bytes that are kept from the end of standard error."""
MAX_OUTPUT = 600
"""Characters of them that a failure tells."""
_PIECE = 1 << 16
_KEEPER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")))


class Tail:
    """The end of what is written into a pipe; the rest is read and dropped, so that nobody waits for a reader."""

    def __init__(self, pipe: IO[bytes], most_bytes: int) -> None:
        self._pipe, self._most = pipe, most_bytes
        self._kept = bytearray()
        self.dropped = False
        """Whether something before `written` was dropped."""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_PIECE)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._pipe)
        try:
            while piece := await reader.read(_PIECE):
                self._kept += piece
                if (surplus := len(self._kept) - self._most) > 0:
                    del self._kept[:surplus]
                    self.dropped = True
        finally:
            transport.close()

    async def close(self, timeout_s: float) -> None:
        """Waits for the pipe's end, at most `timeout_s`, then stops reading."""
        await asyncio.wait([self._reading], timeout=timeout_s)
        self._reading.cancel()

    @property
    def written(self) -> bytes:
        """The last bytes that came."""
        return bytes(self._kept)


class Kept:
    """One command that was started. Use it in one event loop, and `close` it."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdin: int,
        memory_gib: float | None = None,
        most_output: int = ERROR_BYTES,
        folder: str = "",
    ) -> None:
        """Starts the command in the current folder. `stdin`: the descriptor of its standard input; `most_output`:
        bytes that are kept from the end of its standard output; `folder`: its temporary files, which are removed if
        this process ends before the command."""
        self.has_lost_keeper = True
        """Whether no keeper has said how the command ended, so that processes of it may still run."""
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [*_KEEPER, str(theirs.fileno()), str(int((memory_gib or 0) * 2**30)), folder, *command],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environment),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # so that Ctrl-C at the terminal does not reach it
            )
        assert self._process.stdout is not None and self._process.stderr is not None
        self.exit_code: int | None = None
        """Of a command that ended by itself."""
        self.output, self.errors = Tail(self._process.stdout, most_output), Tail(self._process.stderr, ERROR_BYTES)
        self._waiting = asyncio.create_task(self._wait())

    async def ended(self) -> str:
        """How the command ended, in words; empty for exit code 0. What it wrote is complete then."""
        return await asyncio.shield(self._waiting)

    async def close(self) -> None:
        """Ends the command and all that it started."""
        if self._waiting.done():
            return
        with suppress(OSError):  # the keeper may have ended meanwhile
            self._control.shutdown(socket.SHUT_WR)
        done, _ = await asyncio.wait([self._waiting], timeout=END_S)
        if not done:
            self._process.kill()  # its children die with it
            await asyncio.wait([self._waiting], timeout=END_S)

    async def _wait(self) -> str:
        report = b""
        try:
            with suppress(OSError):
                while piece := await asyncio.get_running_loop().sock_recv(self._control, _PIECE):
                    report += piece
            async with asyncio.timeout(END_S):
                while self._process.poll() is None:
                    await asyncio.sleep(0.005)
        except TimeoutError:
            self._process.kill()  # its children die with it
        finally:
            self._control.close()  # which ends the keeper, also if nobody waits for that any more
        self.has_lost_keeper = not report
        await asyncio.gather(*(tail.close(1.0) for tail in (self.output, self.errors)))
        found = json.loads(report) if report else {}
        self.exit_code = found.get("code")
        return _in_words(found)

    def last_output(self) -> str:
        """What it last wrote to standard error, or else to standard output, in one line; empty if nothing."""
        for tail in (self.errors, self.output):
            lines = [line.strip() for line in tail.written.decode(errors="replace").splitlines() if line.strip()]
            if lines:
                text = " | ".join(lines)
                return f"; it last wrote: {shortened(text[-MAX_OUTPUT:], MAX_OUTPUT)}"
        return ""


def _in_words(found: Mapping[str, Any]) -> str:
    """How a command ended, of the keeper's report."""
    if not found:
        return "was ended from outside"
    if error := found.get("error"):
        return f"could not be started: {error}"
    if "signal" in found:
        number = found["signal"]
        names = {one.value: one.name for one in signal.Signals}
        return f"was ended by signal {number} ({names.get(number, 'unknown')})"
    return f"ended with exit code {found['code']}" if found["code"] else ""
