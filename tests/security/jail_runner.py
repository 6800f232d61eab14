"""Runs one program in a jail, for the tests: `jail_runner.py STAGE LIFETIME_S ALTERED PROGRAM…`
prints what it said, then how it ended.

STAGE holds `root` (the jail's), `tree`, `bundle` and `out`, or of a VMM's jail `root` and `image`.
ALTERED: "vmm" (the jail of a VMM, whose PROGRAM is the probe's mode; of all others it is a
runtime's); "plain"; "brief" (its start may not be heard of before its end); "writer" (no init, and
nothing but a writable directory `out`); "network" (a network namespace, into which nobody puts a
link), "unconnected" (the same, and nobody says that it is there), "forsaken" (the same, and nobody
is left to say it). A program of its own so that an ordinary user's interpreter can run it, and so
that it can be killed. A line on standard input is passed on; its end is not.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import select
import socket
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import anyio

from belljar.errors import BelljarError
from belljar.isolation.identity import hold_identity
from belljar.isolation.jail import Jail, start_jail
from belljar.plan.jail import JailIdentity, JailIds, JailLimits, JailMount, JailSpec

STAGE_ID = 0xA800_0000
TREE_ID = 0xA900_0000
COUNT = 1 << 16
NETWORKED = ("network", "unconnected", "forsaken")


def keep_a_key() -> bool:
    """A secret in the owner's session keyring, as a login has."""
    call = ctypes.CDLL(None).syscall
    keyctl, add_key = {"x86_64": (250, 248), "aarch64": (219, 217)}[os.uname().machine]
    call(keyctl, 1, None)
    call(add_key, b"user", b"of-the-owner", b"secret", 6, -3)
    return bool(call(keyctl, 10, -3, b"user", b"of-the-owner", 0) > 0)


def subordinate(file: str) -> int:
    name = pwd.getpwuid(os.getuid()).pw_name
    return next(
        int(line.split(":")[1])
        for line in Path(file).read_text().splitlines()
        if line.split(":")[0] == name
    )


def cell_ids(altered: str) -> JailIds:
    """As root a range that no cell of Belljar's has, else the user's own."""
    if os.geteuid() == 0:
        lines = ((0, STAGE_ID, 1), (1, STAGE_ID + 1, COUNT))
        return JailIds(uid_map=lines, gid_map=lines)
    first = subordinate("/etc/subuid")
    return JailIds(
        uid_map=((0, os.getuid(), 1), (1, first, COUNT)),
        gid_map=((0, os.getgid(), 1), (1, subordinate("/etc/subgid"), COUNT)),
        newuidmap=Path("/usr/bin/newuidmap"),
        newgidmap=Path("/usr/bin/newgidmap"),
    )


def mounts_of(stage: Path, altered: str) -> tuple[JailMount, ...]:
    if altered == "writer":
        return (JailMount(kind="bind", source=stage / "out", target="/out", writable=True),)
    shift = (TREE_ID, STAGE_ID + 1, COUNT) if os.geteuid() == 0 else None
    devices = ("null", "zero", "full", "random", "urandom", "tty")
    return (
        JailMount(kind="proc", target="/proc"),
        JailMount(kind="sysfs", target="/sys"),
        JailMount(kind="cgroup", target="/sys/fs/cgroup"),
        JailMount(kind="tmpfs", target="/dev", size_bytes=64 << 10, inodes=32),
        *(
            JailMount(kind="device", source=Path("/dev", name), target=f"/dev/{name}")
            for name in devices
        ),
        JailMount(kind="tree", source=stage / "tree", target="/tree", shift=shift),
        JailMount(kind="tmpfs", target="/c", size_bytes=4 << 20, inodes=200),
        JailMount(kind="tmpfs", target="/c/proc", size_bytes=4 << 10, inodes=2),
        JailMount(kind="bind", source=stage / "bundle", target="/b"),
        JailMount(kind="overlay", target="/new", lower="/tree", upper="/c/upper", work="/c/work"),
    )


def limits_of(lifetime_s: float, *, processes: int, address_space_bytes: int) -> JailLimits:
    return JailLimits(
        memory_max_bytes=1 << 28,
        cpu_quota_percent=None,
        processes=processes,
        lifetime_s=lifetime_s,
        address_space_bytes=address_space_bytes,
    )


def spec_of(stage: Path, lifetime_s: float, altered: str) -> JailSpec:
    ids = cell_ids(altered)
    return JailSpec(
        cell_id="c-00000000feed",
        owner_pid=os.getpid(),
        root=stage / "root",
        identity=JailIdentity(
            host_uid=ids.uid_map[0][1], host_gid=ids.gid_map[0][1], privileged=os.geteuid() == 0
        ),
        limits=limits_of(lifetime_s, processes=64, address_space_bytes=1 << 30),
        cgroups=(),
        memory_by_rlimit=False,
        ids=ids,
        mounts=mounts_of(stage, altered),
        keep_capabilities=True,
        init=altered != "writer",
        network="plain" if altered in NETWORKED else "",
        environment=(("PATH", "/usr/bin"),),
    )


def start_vmms(stage: Path, lifetime_s: float, mode: str, held: ExitStack) -> tuple[Jail, BinaryIO]:
    """The probe in the place of a VMM, and what it says."""
    reader, writer = os.pipe()
    image = stage / "image"
    secret = os.open(image, os.O_RDWR) if os.access(image, os.W_OK) else os.open(image, os.O_RDONLY)
    os.set_inheritable(secret, True)  # what a careless owner might leave open
    identity = held.enter_context(hold_identity())
    spec = JailSpec(
        cell_id="c-00000000beef",
        owner_pid=os.getpid(),
        root=stage / "root",
        binds={"/i/image": image},
        identity=identity.jail,
        limits=limits_of(lifetime_s, processes=20, address_space_bytes=1 << 28),
        cgroups=(),
        memory_by_rlimit=True,
    )
    program = ("/probe", str(writer), mode, str(os.getpid()), "/i/image")
    jail = start_jail(spec, program, kept=(writer,), hold=identity.lock_fd)
    os.close(writer)
    return jail, os.fdopen(reader, "rb")


def start_runtimes(
    stage: Path, lifetime_s: float, altered: str, program: tuple[str, ...]
) -> tuple[Jail, socket.socket]:
    """The program in the place of a runtime, and its standard input and output."""
    ours, theirs = socket.socketpair()
    with theirs:
        spec = spec_of(stage, lifetime_s, altered)
        return start_jail(spec, program, kept=(), stdin_fd=theirs.fileno()), ours


async def main(stage: Path, lifetime_s: float, altered: str, program: tuple[str, ...]) -> None:
    print("owners_key", keep_a_key())
    with ExitStack() as held:
        if altered == "vmm":
            jail, said = start_vmms(stage, lifetime_s, program[0], held)
            is_watched = program[0] == "stay"  # another may have ended before its start is heard of
        else:
            jail, ours = start_runtimes(stage, lifetime_s, altered, program)
            is_brief = altered in ("writer", "brief") or "look" in program
            said, is_watched = ours.makefile("rb"), not is_brief
        try:
            if altered in NETWORKED:
                await connect(jail, altered)
            if is_watched:
                await look(jail)
                if altered != "vmm":
                    threading.Thread(target=feed, args=(ours,), daemon=True).start()
            await anyio.to_thread.run_sync(relay, said)
            await jail.wait_run()
        except BelljarError as exc:
            print("error", type(exc).__name__, exc.what, "|", exc.hint)
            # How it ends by itself, before it is ended
            await anyio.to_thread.run_sync(jail.final_status, 10.0)
        finally:
            with anyio.CancelScope(shield=True):
                await jail.end()
            jail.release_namespaces()
    ended = jail.ended
    print("ended", *((ended.signal, ended.status, ended.cause) if ended else ("without a word",)))
    if jail.diagnosis():
        print("diagnosis", jail.diagnosis())


async def look(jail: Jail) -> None:
    """Say who runs, once it runs (what only writes or looks may have ended by then)."""
    await jail.wait_running()
    print("supervisor", jail.supervisor.pid if jail.supervisor else 0)
    print("child", jail.child.pid if jail.child else 0)
    print("namespaces", len(jail.namespaces), flush=True)


async def connect(jail: Jail, altered: str) -> None:
    print("waiting", (await jail.wait_network()).pid, flush=True)
    if altered == "network":
        jail.go_on()
    if altered == "unconnected":
        await jail.wait_ended()
    if altered == "forsaken" and jail._go is not None:
        os.close(jail._go)
        jail._go = None


def relay(said: BinaryIO) -> None:
    with contextlib.suppress(OSError), said:
        for line in said:
            print(line.decode().rstrip(), flush=True)


def feed(channel: socket.socket) -> None:
    if select.select([sys.stdin], [], [])[0] and (line := sys.stdin.readline()):
        with contextlib.suppress(BrokenPipeError):
            channel.sendall(line.encode())


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], tuple(sys.argv[4:]))
