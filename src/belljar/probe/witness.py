"""Lays out, for one run under secret names, things that only an escape could touch.

What a killed owner leaves in /tmp, the next watch (or `belljar reap`) removes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from belljar import libc
from belljar.descriptors import open_fd
from belljar.probe.judge import Router, Sight
from belljar.probe.model import Witness
from belljar.process import ProcessId, close_all, identify, is_alive, namespaces_of
from belljar.store.locks import claimed
from belljar.store.scratch import owned_name, sweep
from belljar.units import printable

# By it a sweep finds what watches of dead processes left.
_PREFIX: Final = "tmp-w"
_MAX_VISITORS: Final = 16  # a guest may come as often as it likes
# A guest may fork without end, and each process is looked at while a sample waits.
_MAX_PROCESSES: Final = 64
# Signals are numbered from 1 in /proc's masks, too.
_BIT_OF_SIGUSR1: Final = 1 << (signal.SIGUSR1 - 1)
# Open to escaped processes of any user, and short, as a socket's path must be (unix(7)). A
# directory of our own with a random name is made in it.
PLACE: Final = Path("/tmp")  # noqa: S108


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    parameters: Mapping[str, str]
    looks: Mapping[Witness, Callable[[], Sight]]

    def look(self) -> dict[Witness, Sight]:
        """Failures are reported, not raised."""
        sights = {}
        for witness, look in self.looks.items():
            try:
                sights[witness] = look()
            except OSError as error:
                what = f"the host could not look: {error.strerror}"
                sights[witness] = Sight(touched=None, what=what)
        return sights


@contextmanager
def watch(
    wanted: Collection[Witness], *, host_pid: int | None = None, router: Router | None = None
) -> Iterator[LaidOut]:
    """Lay out what the wanted witnesses need.

    `host_pid` is the cell's outermost process. What this host can't lay out is not fatal: its look
    says so, and probes that need it are void.
    """
    token = secrets.token_hex(8)
    parameters = {"nonce": secrets.token_hex(16), "token": token}
    looks: dict[Witness, Callable[[], Sight]] = {}
    with ExitStack() as stack:
        layout = _Layout(stack, token.encode(), router or Router(), host_pid)
        for witness in [each for each in Witness if each in wanted]:
            try:
                parameter, looks[witness] = layout.lay(witness)
            except OSError as error:
                blind = Sight(touched=None, what=f"the host could not watch: {error.strerror}")
                parameter, looks[witness] = "", partial(replace, blind)
            if parameter:
                parameters[witness.value] = parameter
        yield LaidOut(parameters=parameters, looks=looks)


@dataclass
class _Layout:
    stack: ExitStack
    token: bytes
    router: Router
    host_pid: int | None

    def lay(self, witness: Witness) -> tuple[str, Callable[[], Sight]]:
        """Return the witness's parameter, and how to look."""
        match witness:
            case Witness.CANARY:
                path, content = self.directory / "notes.txt", secrets.token_hex(16).encode()
                path.write_bytes(content)
                # Whoever gets out, as whatever user, must be able to leave a trace.
                path.chmod(0o666)
                happened = self.stack.enter_context(watch_file(path))
                return str(path), lambda: _canary(path, content, has_happened=happened())
            case Witness.PID:
                sentinel = self.stack.enter_context(_sleeping_child())
                return str(sentinel.pid), lambda: _sentinel(sentinel)
            case Witness.NAMESPACES:
                return "", lambda: _namespaces(self.host_pid, self.router)
            case Witness.ROUTER:
                return "", self.router.look
        if witness is Witness.TCP6 and not socket.has_ipv6:
            return "0", lambda: Sight(touched=False, what="this host has no IPv6")
        family, kind = _SOCKETS[witness]
        listener = self.stack.enter_context(socket.socket(family, kind | socket.SOCK_NONBLOCK))
        if witness is Witness.ABSTRACT:
            parameter = secrets.token_hex(8)
            listener.bind(f"\0{parameter}")
        elif witness is Witness.SOCKET:
            path = self.directory / "s"
            listener.bind(parameter := str(path))
            path.chmod(0o666)
        else:
            listener.bind(("::1" if witness is Witness.TCP6 else "127.0.0.1", 0))
            parameter = str(listener.getsockname()[1])
        if kind == socket.SOCK_STREAM:
            listener.listen(_MAX_VISITORS)
        return parameter, lambda: _visits(_received(listener, kind), self.token)

    @cached_property
    def directory(self) -> Path:
        return self.stack.enter_context(_own_directory())


_SOCKETS: Final = {
    Witness.SOCKET: (socket.AF_UNIX, socket.SOCK_STREAM),
    Witness.ABSTRACT: (socket.AF_UNIX, socket.SOCK_STREAM),
    Witness.TCP: (socket.AF_INET, socket.SOCK_STREAM),
    Witness.TCP6: (socket.AF_INET6, socket.SOCK_STREAM),
    Witness.UDP: (socket.AF_INET, socket.SOCK_DGRAM),
}


def _canary(path: Path, content: bytes, *, has_happened: bool) -> Sight:
    touched = has_happened or path.read_bytes() != content
    how = "was touched" if touched else "is untouched"
    return Sight(touched=touched, what=f"the host's canary file {how}")


def _visits(received: list[bytes], token: bytes) -> Sight:
    if any(token in each for each in received):
        return Sight(touched=True, what="the host's listener was reached from the cell")
    if received:
        # Another process of this host, perhaps: it is no proof of a breach, nor of its absence.
        heard = printable(received[0], max_chars=40) or "nothing"
        what = f"another process reached the host's listener and sent {heard}"
        return Sight(touched=None, what=what)
    return Sight(touched=False, what="the host's listener heard nothing")


def _received(listener: socket.socket, kind: socket.SocketKind) -> list[bytes]:
    received: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while len(received) < _MAX_VISITORS:
            if kind == socket.SOCK_DGRAM:
                received.append(listener.recv(4096))
                continue
            client, _ = listener.accept()
            with client:
                try:
                    received.append(client.recv(4096, socket.MSG_DONTWAIT))
                except OSError:
                    # Noted all the same: somebody connected, though nothing tells who.
                    received.append(b"")
    return received


def _namespaces(host_pid: int | None, router: Router) -> Sight:
    """Look at the cell's processes: their namespaces, ids and routes."""
    if host_pid is None:
        return Sight(touched=None, what="the host knows no process of this cell")
    own, looked = namespaces_of(os.getpid()), 0
    for pid in _family(host_pid):
        theirs = namespaces_of(pid)
        if shared := sorted(name for name, number in theirs.items() if own.get(name) == number):
            what = f"a process of the cell is in the host's {', '.join(shared)} namespace"
            return Sight(touched=True, what=what)
        # A device that is called as the cell's port counts as it only where the port was attached.
        port = router.interface if theirs.get("net") == router.namespace() else ""
        if way := _way_to_host(pid, port):
            return Sight(touched=True, what=f"a process of the cell {way}")
        looked += len(theirs) == len(own)
    if not looked:
        what = "the host could not read the namespaces of the cell's processes"
        return Sight(touched=None, what=what)
    but = " but to its router" if router.interface else ""
    what = f"none of the cell's processes ({looked}) shares a namespace with the host, "
    return Sight(touched=False, what=f"{what}maps its root, or has a route{but}")


def _way_to_host(pid: int, port: str) -> str:
    """Return "" if it has none, or has ended."""
    with contextlib.suppress(OSError):
        # Of each range of ids: the inner, the outer, how many
        maps = Path(f"/proc/{pid}/uid_map").read_text().splitlines()
        if any(line.split()[1] == "0" for line in maps):
            return "has the host's user 0 among its own"
        # Where each table has the device: first in one, last in the other.
        for table, column in (("route", 0), ("ipv6_route", -1)):
            file = Path(f"/proc/{pid}/net/{table}")
            lines = file.read_text(errors="replace").splitlines() if file.exists() else []
            for words in filter(None, map(str.split, lines)):
                if words[column] not in ("Iface", "lo", port):
                    return f"has a route by {printable(words[column], max_chars=32)}"
    return ""


def _family(pid: int) -> Iterator[int]:
    """Yield the process and its living descendants; bounded."""
    waiting, count = [pid], 0
    while waiting and count < _MAX_PROCESSES:
        each, count = waiting.pop(0), count + 1
        yield each
        with contextlib.suppress(OSError, ValueError):
            for task in Path(f"/proc/{each}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]


def _sentinel(sentinel: ProcessId) -> Sight:
    if not is_alive(sentinel):
        return Sight(touched=True, what="the host's sentinel process was killed")
    status = Path(f"/proc/{sentinel.pid}/status").read_text(errors="replace")
    for line in status.splitlines():
        is_mask = line.startswith(("ShdPnd:", "SigPnd:"))
        if is_mask and int(line.split()[1], 16) & _BIT_OF_SIGUSR1:
            return Sight(touched=True, what="the host's sentinel process got a signal")
    return Sight(touched=False, what="the host's sentinel process got no signal")


@contextmanager
def _sleeping_child() -> Iterator[ProcessId]:
    """It ends with this process, however that ends."""
    with ExitStack() as ends:
        read_end, write_end = os.pipe()
        ends.callback(close_all, (read_end, write_end))
        redirect = [
            (os.POSIX_SPAWN_DUP2, read_end, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        ]
        # SIGUSR1 is blocked, so that one that is sent stays pending and can be seen. A group of its
        # own: Ctrl-C at the terminal is not for it.
        pid = os.posix_spawn(
            "/bin/cat", ["cat"], {}, file_actions=redirect, setsigmask=[signal.SIGUSR1], setpgroup=0
        )
        ends.callback(os.waitpid, pid, 0)
        # It isn't waited for yet, so the number can't be another's.
        ends.callback(os.kill, pid, signal.SIGKILL)
        if (child := identify(pid)) is None:
            raise ChildProcessError(10, "the sentinel ended at once")
        yield child


@contextmanager
def _own_directory() -> Iterator[Path]:
    sweep_watches()
    # A sweep in another PID namespace takes every name's process for dead, and only the lock keeps
    # it away: so the name that a sweep finds comes after the lock.
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=PLACE))
    with claimed(made):
        made.chmod(0o755)
        name = owned_name(_PREFIX, made.name.removeprefix(_PREFIX))
        directory = made.rename(made.with_name(name))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def sweep_watches() -> list[str]:
    """Remove this user's watches of dead processes."""
    return [str(each) for each in sweep(PLACE, prefix=_PREFIX)]


# IN_ALL_EVENTS of inotify(7) but IN_CLOSE_WRITE and IN_CLOSE_NOWRITE: any touch counts, and each
# begins with another event. A child of this process that was forked while the file was written
# closes its copy late, at its execve, and has touched nothing.
_TOUCHES: Final = 0xFFF & ~0x018


@contextmanager
def watch_file(path: Path) -> Iterator[Callable[[], bool]]:
    """Yield a function: did anything happen since its last call?"""
    with open_fd(libc.inotify_queue()) as fd:
        libc.inotify_add(fd, str(path), _TOUCHES)

        def has_happened() -> bool:
            with contextlib.suppress(BlockingIOError):
                return bool(os.read(fd, 64 << 10))
            return False

        yield has_happened
