"""Network interfaces: of this network namespace, and of every other one that can be seen."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from belljar.airgap.finding import Finding, State, looked
from belljar.network.supervisor import netlink
from belljar.network.supervisor.netlink import Link
from belljar.network.syscalls import CLONE_NEWNET, enter

# Virtual devices that hand a packet to nobody.
_SINKS: Final = frozenset({"dummy", "ifb", "nlmon"})
# In another namespace these lead to a further namespace only, which is looked at as well.
_INNER: Final = _SINKS | {"veth", "bridge"}
_MAX_NAMESPACES: Final = 4096
_NSFS: Final = re.compile(r"^\S+ \S+ \S+ net:\[(\d+)\] (\S+) .* - nsfs ", re.MULTILINE)


def state_of(link: Link) -> State:
    """Whether packets can leave by a link of this namespace. Pure."""
    if is_inner(link) or not link.is_up:
        return State.ABSENT
    return State.PRESENT if link.has_carrier else State.UNKNOWN


def is_inner(link: Link) -> bool:
    """Whether a link leads nowhere, even when it is up. Pure."""
    return link.is_loopback or link.kind in _SINKS


def evidence_of(link: Link) -> str:
    """A link in words. Pure."""
    kind = "loopback" if link.is_loopback else link.kind or "a device of its own driver"
    carrier = "with a carrier" if link.has_carrier else "without a carrier: a cable is enough"
    return f"{link.name} ({kind}) is {f'up, {carrier}' if link.is_up else 'down'}"


def interface_finding(link: Link) -> Finding:
    """Of an interface of this namespace. Pure."""
    name, evidence = f"interface {link.name}", evidence_of(link)
    return Finding(name=name, state=state_of(link), how="looked", evidence=evidence)


def own_links() -> list[Link]:
    """Every link of this namespace. Raises `OSError`."""
    with netlink.open_socket() as kernel:
        return netlink.list_links(kernel)


def namespaces_finding(proc: Path = Path("/proc")) -> Finding:
    """Devices in other namespaces, through which a process there could relay."""
    try:
        places, unreadable = _places(proc)
        places.pop((proc / "self/ns/net").stat().st_ino, None)
    except OSError as error:
        return looked("namespaces", unknown=[f"can't be listed: {error.strerror}"], absent="")
    present, unknown = list[str](), list[str]()
    if unreadable:
        unknown.append(f"the namespaces of {unreadable} processes can't be seen")
    if os.geteuid() != 0:
        unknown.append("other users' processes may be hidden: run as root")
    if len(places) > _MAX_NAMESPACES:
        unknown.append(f"{len(places)} namespaces, more than {_MAX_NAMESPACES}")
    for number, files in list(places.items())[:_MAX_NAMESPACES]:
        try:
            # A thread of its own, which ends in that namespace.
            with ThreadPoolExecutor(1) as thread:
                links = thread.submit(_links_in, files, number).result()
        except OSError as error:
            unknown.append(f"namespace {number} ({files[0]}) can't be entered: {error.strerror}")
            continue
        present += [
            f"{evidence_of(link)}, in namespace {number}"
            for link in links
            if link.is_up and not link.is_loopback and link.kind not in _INNER
        ]
    none = f"{len(places)} other namespaces, none with a device that is up"
    return looked("namespaces", present=present, unknown=unknown, absent=none)


def _places(proc: Path) -> tuple[dict[int, list[Path]], int]:
    """The files of each namespace, by its number; how many processes can't be read."""
    places, unreadable = dict[int, list[Path]](), 0
    for process in filter(str.isdigit, os.listdir(proc)):  # noqa: PTH208 - names alone
        # Not by `glob`, which passes over what it may not read.
        try:
            for thread in os.listdir(proc / process / "task"):  # noqa: PTH208 - as above
                file = proc / process / "task" / thread / "ns/net"
                with suppress(FileNotFoundError, ProcessLookupError):
                    places.setdefault(file.stat().st_ino, []).append(file)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            unreadable += 1
    # Namespaces without a process: `ip netns add` mounts them.
    for number, where in _NSFS.findall((proc / "self/mountinfo").read_text()):
        path = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), where))
        places.setdefault(int(number), []).append(path)
    return places, unreadable


def _links_in(files: Sequence[Path], number: int) -> list[Link]:
    """The links of a namespace by any of its files; none if all its threads have ended.

    Raises `OSError`.
    """
    for file in files:
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            continue
        try:
            if os.fstat(descriptor).st_ino == number:  # else the thread's number is another's now
                enter(descriptor, CLONE_NEWNET)
                return own_links()
        finally:
            os.close(descriptor)
    return []
