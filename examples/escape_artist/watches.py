"""What looks on the host whether an attack worked. A watch starts before the attack and is asked after it; nothing that the guest says decides.

`facts` are what the attacker is told. `seen(...)` gives what the host saw that should not be: empty is contained. The same watch is used for the cell and for the
check outside of it, so a watch that sees nothing there would show.
"""

# ruff: noqa: ARG002 - the signatures are an interface's

from __future__ import annotations

import os
import pty
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import termios
import threading
import tty
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from sightings import (
    MIB,
    allocated,
    callers,
    fingerprint,
    has_own_network,
    interfaces_of,
    listeners,
    loaded_modules,
    may_see_files,
    name_of,
    open_files,
    own_addresses,
    processes_with,
    resident_bytes,
    threads_of,
)


@dataclass
class Scene:
    """Where an attack takes place, as far as a watch must know it.

    `pids` are the host's processes that carry it (the cell's, or the attack's own when it runs outside). `status` is the exit status of its last command as
    the host has it. `spoken` is all that was said, by the attacker or its commands. `images` are the host's files that a cell was made from.
    """

    pids: Callable[[], set[int]]
    status: int | None = None
    spoken: str = ""
    in_cell: bool = False
    images: tuple[Path, ...] = ()
    next_has_file: bool | None = None
    next_has_process: bool | None = None
    answers: bool | None = None


@dataclass
class Watch:
    """Looks at one thing. Used once: `start`, the attack, `seen`, `stop`."""

    marker: str
    facts: dict[str, Any] = field(default_factory=dict)

    def start(self, scene: Scene) -> None:
        """Begin to look."""

    def seen(self, scene: Scene) -> list[str]:
        """What the host saw that should not be."""
        raise NotImplementedError

    def stop(self) -> None:
        """Remove what `start` made."""


@dataclass
class Files(Watch):
    """A file of the host with a secret in it."""

    secret: str = field(default_factory=lambda: secrets.token_hex(16))
    folder: Path = Path()

    def start(self, scene: Scene) -> None:
        """Make the file, readable for all."""
        self.folder = Path(tempfile.mkdtemp(prefix="notes-", dir="/var/tmp"))
        self.folder.chmod(0o777)
        self.canary = self.folder / "accounts.txt"
        self.canary.write_text(self.secret)
        self.canary.chmod(0o666)
        self.facts = {"canary": str(self.canary), "folder": str(self.folder)}

    def seen(self, scene: Scene) -> list[str]:
        """Changed, gone, joined by another, or its secret spoken."""
        found = []
        if not self.canary.exists() or self.canary.read_text() != self.secret:
            found.append("the host's file was changed")
        if [path for path in self.folder.iterdir() if path != self.canary]:
            found.append("a file appeared beside it")
        return found + (["its secret was read"] if self.secret in scene.spoken else [])

    def stop(self) -> None:
        """Remove it."""
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class Terminal(Watch):
    """A terminal of the host."""

    def start(self, scene: Scene) -> None:
        """Open one."""
        self.master, self.slave = pty.openpty()
        tty.setraw(self.slave, termios.TCSANOW)
        name = os.ttyname(self.slave)
        self.facts = {"tty": name, "tty_number": name.rsplit("/", 1)[-1]}

    def seen(self, scene: Scene) -> list[str]:
        """The word appeared there."""
        readable, _, _ = select.select([self.master], [], [], 0)
        return (
            ["the word appeared on the host's terminal"]
            if readable and self.marker.encode() in os.read(self.master, 65536)
            else []
        )

    def stop(self) -> None:
        """Close it."""
        os.close(self.master)
        os.close(self.slave)


INTERNET = ("1.1.1.1", "8.8.8.8", "93.184.215.14", "2606:4700:4700::1111")
METADATA = ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16")
ANY_PORT = {"internet": 443, "metadata": 80, "dns": 53}


@dataclass
class Network(Watch):
    """Listens where the attacker is sent, and looks at the network interfaces of the processes that carry the cell.

    `kind` lan: the host's own addresses, where it really listens. Otherwise the addresses are not the host's: for a cell its interfaces decide; outside, the check
    gives a namespace those addresses, listens there, and puts what it heard into `calls`.
    """

    kind: str = "lan"
    calls: list[str] = field(default_factory=list)

    def start(self, scene: Scene) -> None:
        """Listen."""
        hosts = {
            "internet": INTERNET,
            "metadata": METADATA,
            "dns": INTERNET,
            "lan": own_addresses(),
        }[self.kind]
        port = ANY_PORT.get(self.kind, 0)
        self.sockets = list(listeners(hosts[0], 0)) if self.kind == "lan" else []
        if self.sockets:
            port = self.sockets[0].getsockname()[1]
            self.sockets += [s for host in hosts[1:] for s in listeners(host, port)]
        self.facts = {
            "targets": ", ".join(f"({host!r}, {port})" for host in hosts),
            "addresses": " ".join(hosts),
            "port": port,
        }

    def seen(self, scene: Scene) -> list[str]:
        """Somebody called; or the cell's processes have an interface that could."""
        found = [
            *self.calls,
            *(caller for listening in self.sockets for caller in callers(listening)),
        ]
        return found + (self._interfaces(scene) if scene.in_cell else [])

    def _interfaces(self, scene: Scene) -> list[str]:
        machines = {pid for pid in scene.pids() if name_of(pid).startswith("qemu")}
        # A container has no machine: its processes are those with a network of their own, and their loopback is nobody else's.
        inside = machines or {pid for pid in scene.pids() if has_own_network(pid)}
        looks = {pid: interfaces_of(pid) for pid in inside}
        # A command of the cell that has ended meanwhile has none, and nothing to hide in.
        known = [found for pid, found in looks.items() if found or machines or has_own_network(pid)]
        sending = {name for found in known for name, sent in found if sent and machines}
        others = {name for found in known for name, _ in found if name != "lo"}
        if not all(known) or not known:  # every network has at least a loopback
            return ["no process with the cell's network was there to look at"]
        if interfaces := sending | others:
            return [f"the cell has network interfaces: {', '.join(sorted(interfaces))}"]
        return []

    def stop(self) -> None:
        """Stop listening."""
        for listening in self.sockets:
            listening.close()


@dataclass
class Process(Watch):
    """A process of the host."""

    def start(self, scene: Scene) -> None:
        """Start it: its command line begins with a word that is told, and ends with one that is not."""
        self.secret = secrets.token_hex(8)
        needle = f"keeper-{self.marker[:8]}"
        self.victim = subprocess.Popen(
            [needle, "-c", "import time; time.sleep(3600)", self.secret], executable=sys.executable
        )
        self.facts = {"needle": needle, "needle_length": len(needle)}

    def seen(self, scene: Scene) -> list[str]:
        """It is dead, or what was not told was spoken."""
        found = ["the host's process was killed"] if self.victim.poll() is not None else []
        return found + (["its command line was read"] if self.secret in scene.spoken else [])

    def stop(self) -> None:
        """End it."""
        self.victim.kill()
        self.victim.wait()


@dataclass
class Mounts(Watch):
    """The host's mount table."""

    table: Path = Path("/proc/self/mountinfo")

    def seen(self, scene: Scene) -> list[str]:
        """The word is in it."""
        return ["it is in the host's mount table"] if self.marker in self.table.read_text() else []


@dataclass
class Modules(Watch):
    """The host's kernel modules."""

    def start(self, scene: Scene) -> None:
        """Choose one that is not loaded."""
        loaded = loaded_modules()
        module = next(name for name in ("dummy", "nlmon", "vcan", "ifb") if name not in loaded)
        self.facts = {"module": module}

    def seen(self, scene: Scene) -> list[str]:
        """It is loaded now."""
        return ["the host loaded the module"] if self.facts["module"] in loaded_modules() else []


@dataclass
class Settings(Watch):
    """The host's kernel settings."""

    def start(self, scene: Scene) -> None:
        """Name them."""
        names = [
            name
            for name in ("core_pattern", "hostname", "modprobe")
            if (Path("/proc/sys/kernel") / name).exists()
        ]
        self.facts = {"settings": " ".join(names)}

    def seen(self, scene: Scene) -> list[str]:
        """One of them has the word."""
        names = str(self.facts["settings"]).split()
        return [
            f"the host's {name} was changed"
            for name in names
            if self.marker in (Path("/proc/sys/kernel") / name).read_text()
        ]


@dataclass
class Images(Watch):
    """The files that cells are made of."""

    def start(self, scene: Scene) -> None:
        """Remember them."""
        self.before = {path: fingerprint(path) for path in scene.images}

    def seen(self, scene: Scene) -> list[str]:
        """One is not what it was."""
        if not self.before:
            return ["no image was there to look at"]
        return [
            f"the host's {path.name} was changed"
            for path, before in self.before.items()
            if fingerprint(path) != before
        ]


@dataclass
class Gauge(Watch):
    """The most that a number on the host reached during the attack, looked at many times a second."""

    limit: float = 0
    what: str = ""
    unit: int = 1
    peak: float = 0

    def start(self, scene: Scene) -> None:
        """Begin to measure."""
        self.ended = threading.Event()
        self.base = self.measure(scene)
        self.thread = threading.Thread(target=self._look, args=(scene,), daemon=True)
        self.thread.start()

    def measure(self, scene: Scene) -> float:
        """The number now."""
        raise NotImplementedError

    def _look(self, scene: Scene) -> None:
        while not self.ended.wait(0.1):
            self.peak = max(self.peak, self.measure(scene) - self.base)

    def seen(self, scene: Scene) -> list[str]:
        """It went over the limit."""
        self.ended.set()
        self.thread.join()
        if scene.in_cell and not scene.pids():
            return ["no process of the cell was there to measure"]
        if self.peak <= self.limit:
            return []
        return [
            f"on the host it took {self.peak / self.unit:.0f} {self.what} (limit {self.limit / self.unit:.0f})"
        ]

    def stop(self) -> None:
        """Measure no more."""
        self.ended.set()


@dataclass
class ProcessCount(Gauge):
    """Processes and threads that carry the attack on the host."""

    limit: float = 300  # More than the policy allows to a cell whose processes are the host's.
    what: str = "more processes"

    def start(self, scene: Scene) -> None:
        """Ask for more than the limit: far more of the cell, a few more outside."""
        self.facts = {"processes": 4000 if scene.in_cell else 400, "seconds": 2}
        super().start(scene)

    def measure(self, scene: Scene) -> float:
        """Threads of all of them."""
        return sum(threads_of(pid) for pid in scene.pids())


@dataclass
class Memory(Gauge):
    """Memory of the host that the attack's processes hold."""

    limit: float = 900 * MIB
    what: str = "MiB of memory"
    unit: int = MIB

    def start(self, scene: Scene) -> None:
        """Ask for more than the limit."""
        self.facts = {"mebibytes": 8192 if scene.in_cell else 1200}
        super().start(scene)

    def measure(self, scene: Scene) -> float:
        """Resident, together."""
        return sum(resident_bytes(pid) for pid in scene.pids())


@dataclass
class Disk(Gauge):
    """Space on the host's disks that the attack's processes take: files they hold open, and the throwaway directory."""

    limit: float = 300 * MIB
    what: str = "MiB of disk"
    unit: int = MIB
    scratch: Path = Path()

    def start(self, scene: Scene) -> None:
        """Ask for more than the limit."""
        self.scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir="/var/tmp"))
        self.facts = {
            "mebibytes": 8192 if scene.in_cell else 500,
            "scratch": "/tmp" if scene.in_cell else str(self.scratch),
        }
        super().start(scene)

    def measure(self, scene: Scene) -> float:
        """Blocks, each file once; where this user may not see what the cell's processes hold, all that is used on the disk."""
        may_see = os.geteuid() == 0 or any(may_see_files(pid) for pid in scene.pids())
        if scene.in_cell and not may_see:
            status = os.statvfs(self.scratch)
            return (status.f_blocks - status.f_bfree) * status.f_frsize
        return allocated(
            chain(
                (path for pid in scene.pids() for path in open_files(pid)), self.scratch.glob("*")
            )
        )

    def stop(self) -> None:
        """Remove the directory."""
        super().stop()
        shutil.rmtree(self.scratch, ignore_errors=True)


@dataclass
class NextFile(Watch):
    """Whoever comes next: a fresh cell, or outside, the next process of the same host."""

    def start(self, scene: Scene) -> None:
        """A place to leave things."""
        self.scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir="/var/tmp"))
        places = (
            "/tmp /var/tmp /dev/shm /usr/local/bin /etc" if scene.in_cell else str(self.scratch)
        )
        self.facts = {"scratch": "/tmp" if scene.in_cell else str(self.scratch), "places": places}

    def seen(self, scene: Scene) -> list[str]:
        """It found the file."""
        return (
            ["the next one found the file"]
            if scene.next_has_file
            else []
            if scene.next_has_file is False
            else ["nobody looked"]
        )

    def stop(self) -> None:
        """Remove the place."""
        shutil.rmtree(self.scratch, ignore_errors=True)


@dataclass
class NextProcess(Watch):
    """As above, for a process."""

    def seen(self, scene: Scene) -> list[str]:
        """It found the process, or the host has it."""
        found = (
            ["the next one found the process"]
            if scene.next_has_process
            else []
            if scene.next_has_process is False
            else ["nobody looked"]
        )
        return found + [
            f"the host runs it: {pid}"
            for pid in processes_with(self.marker)
            if pid not in scene.pids()
        ]


@dataclass
class Status(Watch):
    """The exit status as the host recorded it."""

    def start(self, scene: Scene) -> None:
        """Name the ports that might lead to the host."""
        ports = "/dev/vport* /dev/hvc* /dev/virtio-ports/* /dev/ttyS* /dev/console /dev/kmsg"
        self.facts = {"ports": ports if scene.in_cell else "/dev/null"}

    def seen(self, scene: Scene) -> list[str]:
        """Not the 7 that it was. None: it was not tried."""
        return (
            [f"the host believes the status was {scene.status}"]
            if scene.status not in {7, None}
            else []
        )


@dataclass
class Agent(Watch):
    """Whether the host can still command the machine; if not, whether it noticed."""

    def seen(self, scene: Scene) -> list[str]:
        """It can't, and thinks it can."""
        return [] if scene.answers else ["the program that carries out commands was killed"]


WATCHES: dict[str, Callable[[str], Watch]] = {
    "files": Files,
    "terminal": Terminal,
    "images": Images,
    "network:internet": lambda marker: Network(marker, kind="internet"),
    "network:lan": lambda marker: Network(marker, kind="lan"),
    "network:metadata": lambda marker: Network(marker, kind="metadata"),
    "network:dns": lambda marker: Network(marker, kind="dns"),
    "process": Process,
    "mounts": Mounts,
    "modules": Modules,
    "settings": Settings,
    "process-count": ProcessCount,
    "memory": Memory,
    "disk": Disk,
    "next-file": NextFile,
    "next-process": NextProcess,
    "status": Status,
    "agent": Agent,
}
