"""The system calls that a program may make, as a filter program for Linux on x86-64 (seccomp, classic BPF).

A call that is not listed is refused with EPERM, so new calls of a newer kernel are refused, too. Calls for which glibc
has a fall-back are refused with ENOSYS, so that glibc uses the fall-back. A call of another architecture kills the
process.

No call changes the mode, owner or times of a file, and none locks a file or leases it: the image and the devices are
inodes that other programs and the host share. `docs/guide/sandbox.md` lists the modules that lose something by this.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

ALLOWED = frozenset(
    [
        *range(0, 16),  # read .. rt_sigreturn: files, memory, signals
        *range(17, 29),  # pread64 .. madvise
        *(32, 33, 34, 35, 36, 37, 38, 39, 40),  # dup, pause, nanosleep, timers, getpid, sendfile
        *(57, 58, 59, 60, 61, 62, 63),  # fork, vfork, execve, exit, wait4, kill, uname
        *(74, 75, 76, 77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 95),  # files without mode or owner; umask
        *(96, 97, 98, 99, 100, 102, 104, 107, 108, 109, 110, 111, 112, 115, 121, 124),  # times, limits, ids, sessions
        *(127, 128, 130, 131, 137, 138, 140),  # signals, statfs, getpriority
        *(143, 145, 146, 147, 148),  # scheduling parameters: reading them
        *(158, 160, 186, 200, 201, 202, 204),  # arch_prctl, setrlimit, gettid, tkill, time, futex, sched_getaffinity
        *(213, 217, 218, 219, 228, 229, 230, 231, 232, 233, 234, 247),
        *(257, 258, 262, 263, 264, 265, 266, 267, 269, 270, 271, 273, 281, 284, 285),
        *(290, 291, 292, 293, 295, 296, 316, 318, 326, 332, 334, 436, 439),
    ]
)
IOCTL, CLONE, FCNTL, FLOCK, PRLIMIT64 = 16, 56, 72, 73, 302
TERMINAL_AND_FLAGS = (0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""ioctl: TCGETS (`isatty`), TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
DESCRIPTOR_COMMANDS = (0, 1, 2, 3, 4, 1030, 1032)
"""fcntl: F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ."""
REFUSED_CLONE = 0x7E020000 | 0x8000 | 0x2000
"""Flags of clone: every CLONE_NEW*; CLONE_PARENT, which makes a child of the harness; CLONE_PTRACE."""
FIRST_NEW_CALL = 424  # from this number on, glibc has a fall-back for each call that it uses
ARCHITECTURE = 0xC000003E  # AUDIT_ARCH_X86_64
X32_BIT = 0x40000000

_LOAD, _AND = 0x20, 0x54
_IF_EQUAL, _IF_AT_LEAST = 0x15, 0x35
_RETURN = 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_CALL, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data

Line = tuple[int, int, int, int]


def program() -> bytes:
    """The filter as an array of `struct sock_filter`."""
    refuse, absent = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    lines: list[Line] = [
        *((_LOAD, 0, 0, _ARCH), (_IF_EQUAL, 1, 0, ARCHITECTURE), (_RETURN, 0, 0, _KILL)),
        *((_LOAD, 0, 0, _CALL), (_IF_AT_LEAST, 0, 1, X32_BIT), (_RETURN, 0, 0, _KILL)),
        *_without_flags(CLONE, REFUSED_CLONE),
        *_argument_among(PRLIMIT64, 0, (0,), errno.EPERM),  # own limits, which a program may read and lower
        *_argument_among(FCNTL, 1, DESCRIPTOR_COMMANDS, errno.ENOLCK),
        *_argument_among(IOCTL, 1, TERMINAL_AND_FLAGS, errno.ENOTTY),
        *((_IF_EQUAL, 0, 1, FLOCK), (_RETURN, 0, 0, _ERRNO | errno.ENOLCK)),
    ]
    for call in sorted(ALLOWED):
        lines += [(_IF_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ALLOW)]
    lines += [(_IF_AT_LEAST, 0, 1, FIRST_NEW_CALL), (_RETURN, 0, 0, absent), (_RETURN, 0, 0, refuse)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _without_flags(call: int, flags: int) -> list[Line]:
    """Allows a call unless its first argument has one of the flags."""
    rule = [(_LOAD, 0, 0, _ARGUMENTS), (_AND, 0, 0, flags), (_IF_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW)]
    return _only(call, [*rule, (_RETURN, 0, 0, _ERRNO | errno.EPERM)])


def _argument_among(call: int, number: int, values: Sequence[int], error: int) -> list[Line]:
    """Allows a call if that argument (from 0; its lower 32 bits) is among the values, else refuses it with `error`."""
    rule: list[Line] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * number)]
    for value in values:
        rule += [(_IF_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return _only(call, [*rule, (_RETURN, 0, 0, _ERRNO | error)])


def _only(call: int, rule: list[Line]) -> list[Line]:
    """A rule, which always returns, for one call."""
    return [(_IF_EQUAL, 0, len(rule), call), *rule]
