"""How a gateway's process confines itself before it sees a guest's first byte.

In the forked child, in this order:

1. namespaces: an empty network, not the range's
2. a root with only the stand-ins' directories
3. its own uid, no capability
4. limits
5. the system-call filter

Only passed descriptors remain. No step can be undone.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from belljar.network import syscalls
from belljar.network.seccomp import gateway_filter

FILES_ROOT: Final = "/s"
SCRATCH: Final = "/t"
# A leaf's key and the secrets of a handshake (`gateway.tls`) take a few KiB.
_SCRATCH_BYTES: Final = 1 << 20
_SCRATCH_INODES: Final = 64
# Directories to mount on are all that it holds.
_ROOT_OPTIONS: Final = "mode=0755,size=64k,nr_inodes=1024"
NO_CORE: Final = 1  # as in plan.jail
_INNER_ID: Final = 1000  # Not 0, which gets capabilities again by execve


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What a gateway is confined with.

    `uid`: on the host, when root starts it; None: the user's own, in a user namespace.
    `directories`: host directories by name below `/s`, read-only. `memory_bytes`: beside what the
    fork shares.
    """

    uid: int | None
    directories: Mapping[str, Path]
    memory_bytes: int
    descriptors: int


def confine(box: Confinement, *, parent: int) -> None:
    """Confine this single-threaded process. After an `OSError` it must end."""
    mapped = _mapped_bytes()
    if box.uid is None:
        uid, gid = os.geteuid(), os.getegid()
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        # Before the map of gids, which the kernel refuses otherwise (user_namespaces(7)).
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{_INNER_ID} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{_INNER_ID} {gid} 1")
    private = syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS
    syscalls.unshare(private | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS)
    _make_root(box.directories)
    syscalls.become(box.uid)
    # Behind the change of ids, which clears the signal.
    syscalls.die_with_parent(parent)
    # A search for survivors by an ordinary user needs to see its namespaces
    syscalls.set_dumpable(box.uid is None)
    limits = {
        resource.RLIMIT_AS: mapped + box.memory_bytes,
        resource.RLIMIT_NOFILE: box.descriptors,
        resource.RLIMIT_NPROC: 0,  # No thread either
        resource.RLIMIT_CORE: NO_CORE,
        resource.RLIMIT_FSIZE: _SCRATCH_BYTES,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    syscalls.no_new_privileges()
    syscalls.install_filter(gateway_filter())


def _make_root(directories: Mapping[str, Path]) -> None:
    """Enter a read-only root of bound directories only."""
    # What is mounted below would show in the host's namespace as long as they are peers.
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    bare = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    # Opened first, since one may lie below the place that the new root covers. Named by /proc
    # afterwards.
    sources = {
        name: os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for name, path in directories.items()
    }
    # A place to mount on, in a mount namespace of its own.
    syscalls.mount("tmpfs", "/tmp", "tmpfs", bare, _ROOT_OPTIONS)  # noqa: S108
    root = Path("/tmp")  # noqa: S108
    for name, fd in sources.items():
        target = f"{root}{FILES_ROOT}/{name}"
        Path(target).mkdir(mode=0o755, parents=True)
        syscalls.mount(f"/proc/self/fd/{fd}", target, "", syscalls.MS_BIND)
        syscalls.restrict_mount(target)
        os.close(fd)
    scratch = f"{root}{SCRATCH}"
    Path(scratch).mkdir()
    options = f"mode=0777,size={_SCRATCH_BYTES},nr_inodes={_SCRATCH_INODES}"
    syscalls.mount("tmpfs", scratch, "tmpfs", bare, options)
    syscalls.restrict_mount(str(root))
    syscalls.enter_root(str(root))


def limit_address_space(more_bytes: int) -> None:
    """RLIMIT_AS: so much beyond what is mapped now."""
    limit = _mapped_bytes() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _mapped_bytes() -> int:
    # What the fork has mapped, most of it shared with its parent.
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
