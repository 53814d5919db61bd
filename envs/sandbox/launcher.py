"""Isolates its own process without bubblewrap, then replaces it with the sandbox's interpreter.

    launcher.py ROOT FILTER SCRATCH NAME=VALUE... COMMAND...

The image's interpreter runs it outside of the sandbox. It creates new user, process, network, mount, IPC and host name
spaces, mounts the image read-only as the whole file system, gives up all privileges for the time after the exec, and
installs the system call filter last. It waits for its child without a time-out and dies with its parent. Its own death
kills the child, which is the first process of its namespace, and thereby all others.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

NEW_SPACES = 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000 | 0x08000000 | 0x04000000  # user pid net mount ipc uts
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MS_NOEXEC, MS_NOATIME, MS_NODIRATIME, MS_RELATIME, ST_RELATIME = 8, 1024, 2048, 1 << 21, 4096
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
PIVOT_ROOT = 155
INSIDE_ID = 65534

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    """Calls a C function that returns 0 on success. Raises OSError otherwise."""
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Calls mount(2). Raises OSError if it fails."""
    texts = [text and text.encode() for text in (source, target, kind, data)]
    call("mount", *texts[:3], ctypes.c_ulong(flags), texts[3])


def enter_spaces() -> None:
    """Enters the new name spaces, with this user and group mapped to `INSIDE_ID`."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", NEW_SPACES)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{INSIDE_ID} {uid} 1"), ("gid_map", f"{INSIDE_ID} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def change_root(root: str, scratch: str) -> None:
    """Mounts the image read-only as `/`, with an empty `/tmp` of `scratch` bytes, and removes the host's files."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount(root, root, None, MS_BIND | MS_REC)
    mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"size={scratch},nr_inodes=16384,mode=1777")
    for device in ("null", "zero", "urandom"):
        mount(f"/dev/{device}", f"{root}/dev/{device}", None, MS_BIND)
    mount("none", root, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | locked_flags(root))
    os.chdir(root)
    call("syscall", ctypes.c_long(PIVOT_ROOT), b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/tmp")


def locked_flags(path: str) -> int:
    """Flags of the mount that contains `path`; a user namespace may not remove them."""
    found = os.statvfs(path).f_flag
    return (found & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME)) | (
        MS_RELATIME if found & ST_RELATIME else 0
    )


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("lines", ctypes.c_char_p)]


def confine(lines: bytes) -> None:
    """Installs the system call filter, and forbids new privileges."""
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("prctl", PR_SET_SECCOMP, 2, ctypes.byref(Filter(len(lines) // 8, lines)), 0, 0)


def main(root: str, filter_file: str, scratch: str, *words: str) -> None:
    """Starts an isolated child, which becomes the command, and waits for it."""
    environment = dict(word.split("=", 1) for word in words if "=" in word)
    command = [word for word in words if "=" not in word]
    with open(filter_file, "rb") as file:
        lines = file.read()
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    enter_spaces()
    pid = os.fork()
    if pid:
        os.close(0)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0)
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setsid()
    call("sethostname", b"sandbox", 7)
    change_root(root, scratch)
    confine(lines)
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    main(*sys.argv[1:])
