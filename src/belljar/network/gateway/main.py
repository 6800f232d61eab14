"""A gateway's process receives its sockets, and confines itself."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NoReturn

from belljar.dataclass import from_json
from belljar.network import ipc, syscalls
from belljar.network.gateway.config import FILES_ROOT, GatewayConfig, Listeners
from belljar.network.gateway.site import warm_up
from belljar.network.syscalls import gateway_filter
from belljar.plan.network import gateway_files

Serve = Callable[[GatewayConfig, Listeners, socket.socket], NoReturn]


def run_gateway(fds: list[int], parent: int, serve: Serve) -> NoReturn:
    """Run with `fds`: events' socket, supervisor's socket, document, standard error."""
    events, supervisor = socket.socket(fileno=fds[0]), socket.socket(fileno=fds[1])
    ipc.wait_for_go(events, fds[3])
    document = ipc.from_file(fds[2])
    config = from_json(GatewayConfig, document["config"])
    random.seed()
    # The last descriptors it makes: what one holds in the kernel is within no limit of a process.
    asyncio.set_event_loop(asyncio.SelectorEventLoop())
    # The supervisor makes its namespace first, and reports where the kernel's limit is reached.
    found, more = dict[str, socket.socket](), True
    while more:
        message, passed = ipc.receive(supervisor)
        found |= zip(message["listeners"], (socket.socket(fileno=fd) for fd in passed), strict=True)
        more = message["more"]
    for listener in found.values():
        listener.settimeout(0.0)
    if "cells" in found:
        found["dialled"] = supervisor
    else:
        supervisor.close()
    if config.guard is not None:
        warm_up(config.guard)
    cell_connections = config.bounds.cell_connections if "cells" in found else 0
    confine(
        uid=document["uid"],
        directories=document["directories"],
        memory_bytes=document["memory_bytes"],
        files=gateway_files(config.bounds.connections, cell_connections),
        parent=parent,
    )
    serve(config, found, events)
    print("the gateway has returned", file=sys.stderr, flush=True)
    os._exit(1)


# A leaf's key and the secrets of a handshake (`gateway.tls`) take a few KiB.
_SCRATCH_BYTES: Final = 1 << 20
_INNER_ID: Final = 1000  # Not 0, which gets capabilities again by execve


def confine(
    *, uid: int | None, directories: Mapping[str, str], memory_bytes: int, files: int, parent: int
) -> None:
    """Confine this single-threaded process, which must end after an `OSError`.

    `uid` is the host's, or None in a user namespace; `directories` go read-only below `/s`.
    `memory_bytes` count beside what the fork shares.
    """
    mapped_bytes = syscalls.mapped_bytes()
    if uid is None:
        own_uid, own_gid = os.geteuid(), os.getegid()
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        # Before the map of gids, which the kernel refuses otherwise (user_namespaces(7)).
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{_INNER_ID} {own_uid} 1")
        Path("/proc/self/gid_map").write_text(f"{_INNER_ID} {own_gid} 1")
    private = syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS
    syscalls.unshare(private | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS)
    _make_root(directories)
    syscalls.become(uid)
    # Behind the change of ids, which clears the signal.
    syscalls.die_with_parent(parent)
    # A search for survivors by an ordinary user needs to see its namespaces
    syscalls.set_dumpable(uid is None)
    limits = {
        resource.RLIMIT_AS: mapped_bytes + memory_bytes,
        resource.RLIMIT_NOFILE: files,
        resource.RLIMIT_NPROC: 0,  # No thread either
        resource.RLIMIT_FSIZE: _SCRATCH_BYTES,
    }
    syscalls.limit_resources(limits)
    syscalls.no_new_privileges()
    syscalls.install_filter(gateway_filter())


def _make_root(directories: Mapping[str, str]) -> None:
    # What is mounted below would show in the host's namespace as long as they are peers.
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    bare = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    # Opened first, since one may lie below the place that the new root covers.
    sources = {
        name: os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for name, path in directories.items()
    }
    root, options = "/tmp", "mode=0755,size=64k,nr_inodes=1024"  # noqa: S108
    syscalls.mount("tmpfs", root, "tmpfs", bare, options)
    for name, fd in sources.items():
        target = f"{root}{FILES_ROOT}/{name}"
        Path(target).mkdir(mode=0o755, parents=True)
        syscalls.mount(f"/proc/self/fd/{fd}", target, "", syscalls.MS_BIND)
        syscalls.restrict_mount(target)
        os.close(fd)
    scratch = f"{root}/t"  # `GatewayConfig.scratch`
    Path(scratch).mkdir()
    options = f"mode=0777,size={_SCRATCH_BYTES},nr_inodes=64"
    syscalls.mount("tmpfs", scratch, "tmpfs", bare, options)
    syscalls.restrict_mount(root)
    syscalls.enter_root(root)
