"""What can be seen of this host without disturbing it: sockets, processes, files. Functions only; whoever may not see a thing sees nothing of it."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

MIB = 1 << 20


def listeners(host: str, port: int) -> Iterator[socket.socket]:
    """A TCP and a UDP socket that listen at an address, as far as it is this host's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        listening = socket.socket(family, kind | socket.SOCK_NONBLOCK)
        try:
            listening.bind((host, port))
            if kind is socket.SOCK_STREAM:
                listening.listen(16)
        except OSError:
            listening.close()
            continue
        port = listening.getsockname()[1]
        yield listening


def callers(listening: socket.socket) -> list[str]:
    """Who called since."""
    where = "{}:{}".format(*listening.getsockname()[:2])
    found = []
    with suppress(BlockingIOError):
        while True:
            if listening.type & socket.SOCK_STREAM:
                caller, address = listening.accept()
                caller.close()
            else:
                _, address = listening.recvfrom(4096)
            found.append(f"{where} was called from {address[0]}")
    return found


def own_addresses() -> tuple[str, ...]:
    """This host's addresses that others could call: those it would speak from."""
    found = ["127.0.0.1"]
    for target in ("192.0.2.1", "10.255.255.255"):
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            found.append(probe.getsockname()[0])
    return tuple(dict.fromkeys(found))


def interfaces_of(pid: int) -> list[tuple[str, int]]:
    """The network interfaces that a process has, with the bytes sent on each."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        return [(line.split(":")[0].strip(), int(line.split(":")[1].split()[8])) for line in lines]
    return []


def has_own_network(pid: int) -> bool:
    """Whether a process has another network than this one."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    return False


def name_of(pid: int) -> str:
    """What a process is called; "" when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def loaded_modules() -> set[str]:
    """Names of the host's kernel modules."""
    table = Path("/proc/modules")
    return {line.split()[0] for line in table.read_text().splitlines()} if table.exists() else set()


def fingerprint(path: Path) -> str:
    """Digest of a file, or for a large one its identity, size and times: a write changes them."""
    status = path.stat()
    if status.st_size > 512 * MIB:
        return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def threads_of(pid: int) -> int:
    """Threads of a process."""
    with suppress(OSError):
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    return 0


def resident_bytes(pid: int) -> int:
    """Private memory that a process holds: what others share with it is not its doing."""
    with suppress(OSError, ValueError, IndexError):
        resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    return 0


def open_files(pid: int) -> list[Path]:
    """Regular files that a process holds open."""
    with suppress(OSError):
        return [path for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_file()]
    return []


def may_see_files(pid: int) -> bool:
    """Whether this user may look at the open files of a virtual machine monitor."""
    return (
        name_of(pid).startswith("qemu")
        and os.access(f"/proc/{pid}/fd", os.R_OK)
        and bool(open_files(pid))
    )


def allocated(paths: Iterable[Path]) -> float:
    """Bytes that files take on their disks, each file once."""
    blocks = {}
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            blocks[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(blocks.values())


def processes_with(word: str) -> set[int]:
    """Processes of this host with a word in their command line."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
    return found - {os.getpid()}


def with_descendants(roots: set[int]) -> set[int]:
    """Processes and all that descend from them."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                parents.setdefault(
                    int((entry / "stat").read_text().rpartition(")")[2].split()[1]), []
                ).append(int(entry.name))
    found, left = set(), list(roots)
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += parents.get(pid, [])
    return found
