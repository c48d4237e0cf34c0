"""A process that may read few folders, write one, and reach no other: Landlock, namespaces and seccomp of Linux.

    python -P -m client.process.sandbox READABLE WRITABLE MEMORY MODULE [ARGUMENT ...]    confined, runs the module

Landlock's calls are the kernel's, by number: https://docs.kernel.org/userspace-api/landlock.html.
"""

import ctypes
import errno
import os
import resource
import runpy
import struct
import subprocess  # nosec B404 # this file alone
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""System calls, the same on every processor."""
_VERSION, _RULE_PATH = 1, 1
_EXECUTE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
_READ = _EXECUTE | _READ_FILE | _READ_FOLDER
_FILE_RIGHTS = 1 << 1 | _EXECUTE | _READ_FILE | 1 << 14 | 1 << 15  # of a file: write, truncate, ioctl
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Rights on files that each version of Landlock knows."""
_SCOPED = 3
"""No abstract sockets of others, and no signals to them: version 6."""
_NEW_SPACES = 0x00020000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
"""Namespaces of mounts, shared memory, users, processes and networks."""
QUOTA = 256 << 20
"""Bytes of the folder that it may write to, which is in memory."""
_MOST_WRITTEN = 10_000
"""Files and folders in it."""
_NO_SUID_NO_DEVICES = 2 | 4
_SOCKET = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""By processor: its number for seccomp, and that of the call ``socket``."""
_OTHER_CALLS, _IO_URING = 0x40000000, 425
"""First number of x86_64's second set of calls; and what makes sockets without a call."""
_NO_NEW_PRIVILEGES, _SECCOMP = 38, 22
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/proc", "/sys")
"""What any Python program reads."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")


_MOST_TASKS = 512
"""Threads and processes that it may have at once."""
_CONFINED = 77
"""Exit code of a process that was confined to see whether it can be."""


class NotConfined(RuntimeError):
    """This system cannot confine a process; one line says what it lacks."""


def _checked(what: str, result: int) -> int:
    """Return what a call of the system returned.

    Raises:
        NotConfined: it failed.
    """
    if result < 0:
        raise NotConfined(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def python_path() -> str:
    """Return the folders from which this process imports, as another's ``PYTHONPATH``."""
    return os.pathsep.join(dict.fromkeys(path for path in sys.path if path and Path(path).is_dir()))


@cache
def can_confine() -> str:
    """Return why this system cannot confine a process; empty: it can."""
    if sys.platform != "linux":
        return "only Linux has Landlock"
    # Not in a fork: a library may start threads in one, and a process with threads cannot be confined.
    environment = {**os.environ, "PYTHONPATH": python_path()}
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-P", "-m", __name__, "", folder, "0"]
        tried = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)  # nosec B603 # this file
    return "" if tried.returncode == _CONFINED else tried.stderr.strip()[-200:] or f"exit code {tried.returncode}"


def confine(readable: Iterable[str], writable: str, memory: int = 0) -> None:
    """Confine this process and all that it starts, for good; it must have one thread.

    It becomes the first process of its namespace: with it all end that it has started.

    Args:
        readable: files and folders that it may read, besides `SYSTEM`.
        writable: the only folder that it may write to, up to `QUOTA`; it is emptied, and becomes the current one.
        memory: bytes that it may take; 0: any number.

    Raises:
        NotConfined: the system does not offer it.
    """
    user, group = os.geteuid(), os.getegid()
    _checked("no namespaces of its own", _LIBC.unshare(_NEW_SPACES))
    _mount(writable, user, group)
    _be_the_first()
    version = _checked("no Landlock", _LIBC.syscall(_CREATE, None, 0, _VERSION))
    rights = _RIGHTS[max(known for known in _RIGHTS if known <= version)]
    files, ports, scoped = (struct.pack("Q", value) for value in (rights, 0, _SCOPED))
    rules = files + ports + scoped if version >= 6 else files
    ruleset = _checked("Landlock's rules", _LIBC.syscall(_CREATE, rules, len(rules), 0))
    for path in (*SYSTEM, *readable):
        _allow(ruleset, path, _READ & rights)
    for path in (writable, *_DEVICES):
        _allow(ruleset, path, rights)
    _checked("no_new_privs", _LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _checked("Landlock", _LIBC.syscall(_RESTRICT, ruleset, 0))
    os.close(ruleset)
    _make_no_sockets()
    resource.setrlimit(resource.RLIMIT_NPROC, (_MOST_TASKS, _MOST_TASKS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def _mount(folder: str, user: int, group: int) -> None:
    """Put a file system of a limited size over a folder, which is then empty, and go there."""
    try:
        for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path(f"/proc/self/{name}").write_text(line, "utf-8")
    except OSError as error:
        raise NotConfined(f"no user of its own: {error.strerror}") from None
    options = f"size={QUOTA},nr_inodes={_MOST_WRITTEN},mode=700".encode()
    mounted = _LIBC.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", _NO_SUID_NO_DEVICES, options)
    _checked("no folder of a limited size", mounted)
    os.chdir(folder)


def _make_no_sockets() -> None:
    """Refuse new sockets for good: by one, a file at which an unconfined program listens is in reach.

    Neither Landlock nor a network of its own hides such files. Pairs of sockets stay allowed.
    """
    if (machine := os.uname().machine) not in _SOCKET:
        raise NotConfined(f"no filter of calls for {machine}: {', '.join(_SOCKET)}")
    processor, socket = _SOCKET[machine]
    load, equal, at_least, end = 0x20, 0x15, 0x35, 0x06
    refuse, allow = 0x00050000 | errno.EPERM, 0x7FFF0000
    steps = (  # each a `struct sock_filter`: operation, steps to skip if it holds, if it does not, and its value
        (load, 0, 0, 4),  # of `struct seccomp_data`: the processor
        (equal, 0, 4, processor),
        (load, 0, 0, 0),  # the call
        (at_least, 2, 0, _OTHER_CALLS),
        (equal, 1, 0, socket),
        (equal, 0, 1, _IO_URING),
        (end, 0, 0, refuse),
        (end, 0, 0, allow),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HP", len(steps), ctypes.addressof(code))
    _checked("seccomp", _LIBC.prctl(_SECCOMP, 2, program, 0, 0))


def _be_the_first() -> None:
    """Go on in the first process of the new namespace, and end as it does."""
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    _LIBC.prctl(1, 9, 0, 0, 0)  # the kernel kills it with its parent


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Allow rights on a file, or beneath a folder; one that is not there is passed over."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = rights if Path(path).is_dir() else rights & _FILE_RIGHTS
        rule = struct.pack("=Qi", allowed, place)
        _checked(f"'{path}'", _LIBC.syscall(_ADD, ruleset, _RULE_PATH, rule, 0))
    finally:
        os.close(place)


if __name__ == "__main__":
    readable, writable, memory, *words = sys.argv[1:]
    try:
        confine(readable.split(os.pathsep), writable, int(memory))
    except NotConfined as refused:
        print(refused, file=sys.stderr)
        sys.exit(2)
    if not words:  # to see whether it can be done
        sys.exit(_CONFINED)
    module, *rest = words
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__")
