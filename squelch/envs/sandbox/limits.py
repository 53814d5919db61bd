"""Limits of a program's resources, and settings of the sandbox."""

from __future__ import annotations

from pydantic import Field

from squelch.kit.base.settings import Settings

SCRATCH_BYTES = 32 * 2**20
"""Size of the file system in memory that is the only place a program can write to; it disappears with the sandbox."""
SCRATCH_INODES = 16384
"""Number of files, folders and links in that file system."""
ERROR_BYTES = 4096
"""Number of bytes that are kept from the end of a program's standard error."""


class Limits(Settings):
    """Limits of one program. The kernel, or a process outside the program's processes, enforces each."""

    wall_s: float = Field(2.0, gt=0, le=600)
    """Wall-clock seconds for one test; then every process of the program is killed from outside. Time that the program
    waits for a core does not count; a test ends after 4 times this at the latest."""
    cpu_s: int = Field(2, ge=1, le=600)
    """CPU seconds per test and process."""
    total_s: float = Field(8.0, gt=0, le=3600)
    """Wall-clock seconds for all tests of one program; tests that have not started by then count as failed. Time that
    the program waits for a core does not count here either. Keep 4 times this below
    `environment_actor.step_timeout_s`, after which the whole trajectory fails."""
    memory_mb: int = Field(256, ge=64)
    """MiB of address space of each process and, if control groups are available, of memory of all processes
    together."""
    processes: int = Field(8, ge=0, le=256)
    """Processes and threads in addition to the program's first."""
    output_kb: int = Field(256, ge=1, le=SCRATCH_BYTES // 2**10)
    """KiB that one test may write to standard output, or return from a call."""
    file_mb: int = Field(8, ge=1, le=SCRATCH_BYTES // 2**20)
    """MiB of the largest file, in a scratch file system of 32 MiB in all."""

    def words(self) -> str:
        """The limits in words."""
        return (
            f"{self.wall_s:g} s a test, {self.total_s:g} s a program, {self.memory_mb} MiB a process, {self.processes} "
            f"more processes, {SCRATCH_BYTES // 2**20} MiB and {SCRATCH_INODES:,} files of scratch space"
        )


class SandboxConfig(Settings):
    """The sandbox for model-written programs."""

    limits: Limits = Limits()
    warm: int = Field(4, ge=1, le=64)
    """Number of isolated interpreters that wait for a program. Each runs one program and is then killed."""
    allow_unsafe: bool = False
    """Run programs with resource limits only if no back end isolates them. They can then read and change every file
    that this user can, and forge their results: only for programs that you trust."""
