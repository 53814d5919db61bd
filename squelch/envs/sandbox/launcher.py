"""Starts isolated interpreters without bubblewrap. One launcher serves one pool.

    launcher.py ROOT FILTER SCRATCH_BYTES SCRATCH_INODES NAME=VALUE... COMMAND...

The image's interpreter runs it outside of the sandbox, as the user that programs run as. Its descriptor 0 is a packet
socket. Each packet brings one descriptor, the standard input of a new COMMAND. The answer is the new process's id with
a descriptor of the process (pidfd), or `E` and the reason why there is none. The launcher waits for packets without a
time-out; it ends when the socket is closed or its parent dies.

A new process is created directly in new user, process, network, mount, IPC and host name spaces, as process 1 there. It
mounts the image read-only as the whole file system, gives up all privileges for the time after the exec, and installs
the system call filter last. An error before the exec is written to its standard input as `E` and the reason. The
process dies with the launcher, and all other processes of its namespace die with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

NEW_SPACES = 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000 | 0x08000000 | 0x04000000  # user pid net mount ipc uts
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MS_NOEXEC, MS_NOATIME, MS_NODIRATIME, MS_RELATIME, ST_RELATIME = 8, 1024, 2048, 1 << 21, 4096
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
CLONE, PIVOT_ROOT = 56, 155
INSIDE_ID = 65534
LONGEST_REASON = 400

libc = ctypes.PyDLL(None, use_errno=True)  # PyDLL keeps the interpreter lock, which a new process could not take again


def call(name: str, *arguments: object) -> int:
    """Calls a C function that returns -1 on error. Raises OSError then."""
    result = getattr(libc, name)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Calls mount(2). Raises OSError if it fails."""
    texts = [text and text.encode() for text in (source, target, kind, data)]
    call("mount", *texts[:3], ctypes.c_ulong(flags), texts[3])


def map_user(uid: int, gid: int) -> None:
    """Makes this process `INSIDE_ID` in its new user namespace. `uid`, `gid`: who it is outside."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{INSIDE_ID} {uid} 1"), ("gid_map", f"{INSIDE_ID} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def change_root(root: str, scratch: str) -> None:
    """Mounts the image read-only as `/`, with an empty `/tmp` (`scratch`: its mount options), and removes the host's
    files."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount(root, root, None, MS_BIND | MS_REC)
    mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, scratch)
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


class Launcher:
    """What every new process has in common."""

    def __init__(self, root: str, filter_file: str, size: str, inodes: str, *words: str) -> None:
        self.root, self.scratch = root, f"size={size},nr_inodes={inodes},mode=1777"
        with open(filter_file, "rb") as file:
            self.lines = file.read()
        self.environment = dict(word.split("=", 1) for word in words if "=" in word)
        self.command = [word for word in words if "=" not in word]
        self.user = (os.geteuid(), os.getegid())

    def serve(self, control: socket.socket) -> None:
        """Starts a process for each packet until the socket is closed."""
        while True:
            _, files, _, _ = socket.recv_fds(control, 1, 1, socket.MSG_CMSG_CLOEXEC)
            reap()
            if not files:
                return
            self.answer(control, files[0])
            os.close(files[0])

    def answer(self, control: socket.socket, channel: int) -> None:
        """Starts one process, and tells its id and its descriptor."""
        try:
            pid = self.start(channel)
            process = os.pidfd_open(pid)
        except OSError as error:
            control.send(b"E" + str(error).encode()[:LONGEST_REASON])
            return
        socket.send_fds(control, [pid.to_bytes(4, "big")], [process])
        os.close(process)

    def start(self, channel: int) -> int:
        """Starts one process with `channel` as its standard input; returns its id."""
        flags = ctypes.c_ulong(NEW_SPACES | signal.SIGCHLD)
        pid = call("syscall", ctypes.c_long(CLONE), flags, None, None, None, None)
        if pid == 0:
            self.become(channel)
        return pid

    def become(self, channel: int) -> None:
        """Turns this process into the isolated command. Never returns."""
        try:
            os.dup2(channel, 0)
            map_user(*self.user)
            call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after the change of user, which clears it
            os.setsid()
            call("sethostname", b"sandbox", 7)
            change_root(self.root, self.scratch)
            confine(self.lines)
            os.execve(self.command[0], self.command, self.environment)
        except BaseException as error:
            os.write(0, b"E" + str(error).encode()[:LONGEST_REASON])
        finally:
            os._exit(1)


def reap() -> None:
    """Collects the processes that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def main(*words: str) -> None:
    """Serves the socket on descriptor 0."""
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    Launcher(*words).serve(socket.socket(fileno=os.dup(0)))


if __name__ == "__main__":
    main(*sys.argv[1:])
