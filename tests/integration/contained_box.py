"""A bare container for the agent's contained mode, without an OCI runtime: namespaces, an id range,
a small root, then the agent as process 1.

Run as a program: `python contained_box.py ROOT AGENT PROBE`, descriptor 0 is the channel. Ends when
the agent does; the agent dies with it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

ID_START, ID_COUNT = 0x7000_0000, 65_536
NEW_NAMESPACES = 0x1000_0000 | 0x2_0000 | 0x2000_0000 | 0x4000_0000 | 0x800_0000 | 0x400_0000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, SIGKILL = 1, 9
NODES = ("null", "zero", "full", "random", "urandom", "tty")
libc = ctypes.CDLL(None, use_errno=True)


def must(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(
    source: str | None, target: Path, kind: str | None = None, flags: int = 0, options: str = ""
) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, str(target), kind)]
    must(libc.mount(*encoded, ctypes.c_ulong(flags), options.encode() or None))


def make_root(root: Path, agent: str, probe: str) -> None:
    """The system's programs, two programs, /dev, /proc, /tmp; all else empty and writable."""
    mount("none", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=256m")
    for name in ("usr", "etc", "dev", "proc", "tmp", "root"):
        (root / name).mkdir()
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())
    mount("/usr", root / "usr", flags=MS_BIND | MS_REC)
    for name in ("passwd", "group", "ld.so.cache"):
        shutil.copy(f"/etc/{name}", root / "etc" / name)
    (root / "etc/machine-id").write_text("")
    (root / "tmp").chmod(0o1777)
    for name, source in (
        (".a", agent),
        (".p", probe),
        *((f"dev/{node}", f"/dev/{node}") for node in NODES),
    ):
        (root / name).touch()
        mount(source, root / name, flags=MS_BIND)
    (root / "dev/pts").mkdir()
    mount(
        "devpts", root / "dev/pts", "devpts", MS_NOSUID, "newinstance,ptmxmode=0666,mode=0620,gid=5"
    )
    mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV)


def inner(root: Path, agent: str, probe: str) -> None:
    """Process 1 of the container, until it is the agent."""
    must(libc.prctl(PR_SET_PDEATHSIG, SIGKILL))
    mount(None, Path("/"), flags=MS_REC | MS_PRIVATE)
    make_root(root, agent, probe)
    os.chroot(root)
    os.chdir("/")
    arguments = ["/.a", "--contained", "0", "/.a", "/.p"]
    os.execve(arguments[0], arguments, {"SECRET": "of the agent"})  # noqa: S606 - argv, no shell


def outer(arguments: list[str], ready: int, go: int) -> None:
    """In the new user namespace: becomes its root, makes process 1, ends with it."""
    must(libc.prctl(PR_SET_PDEATHSIG, SIGKILL))
    must(libc.unshare(NEW_NAMESPACES))
    os.write(ready, b"r")
    os.read(go, 1)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    if (pid := os.fork()) == 0:
        inner(Path(arguments[0]), *arguments[1:])
    os.close(0)
    os.waitpid(pid, 0)


def main(arguments: list[str]) -> None:
    ready, go = os.pipe(), os.pipe()
    if (pid := os.fork()) == 0:
        outer(arguments, ready[1], go[0])
        os._exit(0)
    os.read(ready[0], 1)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{name}").write_text(f"0 {ID_START} {ID_COUNT}\n")
    os.write(go[1], b"g")
    os.close(0)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
