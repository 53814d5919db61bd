"""The system calls that a program may make, as a filter program for Linux on x86-64 (seccomp, classic BPF).

A call that is not listed is refused with EPERM, so new calls of a newer kernel are refused, too. Calls for which glibc
has a fall-back are refused with ENOSYS, so that glibc uses the fall-back. A call of another architecture kills the
process.
"""

from __future__ import annotations

import errno
import struct

ALLOWED = frozenset(
    [
        *range(0, 29),  # read .. madvise: files, memory, signals, pipes
        *(32, 33, 34, 35, 36, 37, 38, 39, 40),  # dup, pause, nanosleep, timers, getpid, sendfile
        *(57, 58, 59, 60, 61, 62, 63),  # fork, vfork, execve, exit, wait4, kill, uname (clone has a rule of its own)
        *(72, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91, 95),  # files; umask
        *(96, 97, 98, 99, 100, 102, 104, 107, 108, 109, 110, 111, 112, 115, 121, 124),  # times, limits, ids, sessions
        *(127, 128, 130, 131, 132, 137, 138, 140),  # signals, utime, statfs, getpriority
        *(143, 144, 145, 146, 147, 148),  # scheduling: own parameters (without privilege they only get worse)
        *(158, 160, 186, 200, 201, 202, 204),  # arch_prctl, setrlimit, gettid, tkill, time, futex, sched_getaffinity
        *(213, 217, 218, 219, 221, 228, 229, 230, 231, 232, 233, 234, 235, 247),
        *(257, 258, 262, 263, 264, 265, 266, 267, 268, 269, 270, 271, 273, 274, 280, 281, 284, 285),
        *(290, 291, 292, 293, 295, 296, 316, 318, 326, 332, 334, 436, 439),
    ]
)
CLONE, PRLIMIT64, CLONE3 = 56, 302, 435
NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone takes
FIRST_NEW_CALL = 424  # from this number on, glibc has a fall-back for each call that it uses
ARCHITECTURE = 0xC000003E  # AUDIT_ARCH_X86_64
X32_BIT = 0x40000000

_LOAD, _AND = 0x20, 0x54
_IF_EQUAL, _IF_AT_LEAST = 0x15, 0x35
_RETURN = 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_CALL, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data


def program() -> bytes:
    """The filter as an array of `struct sock_filter`."""
    refuse, absent = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    lines = [
        *((_LOAD, 0, 0, _ARCH), (_IF_EQUAL, 1, 0, ARCHITECTURE), (_RETURN, 0, 0, _KILL)),
        *((_LOAD, 0, 0, _CALL), (_IF_AT_LEAST, 0, 1, X32_BIT), (_RETURN, 0, 0, _KILL)),
        *((_IF_EQUAL, 0, 5, CLONE), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_AND, 0, 0, NEW_NAMESPACES)),
        *((_IF_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, refuse)),
        # a program may read and lower its own limits, not those of other processes
        *((_IF_EQUAL, 0, 4, PRLIMIT64), (_LOAD, 0, 0, _FIRST_ARGUMENT)),
        *((_IF_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, refuse)),
    ]
    for call in sorted(ALLOWED):
        lines += [(_IF_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ALLOW)]
    lines += [(_IF_AT_LEAST, 0, 1, FIRST_NEW_CALL), (_RETURN, 0, 0, absent), (_RETURN, 0, 0, refuse)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
