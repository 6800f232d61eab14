"""The host's files and the sockets that lie among them."""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.catalogue._entry import entry
from belljar.probe.model import Witness

_probe = partial(entry, "files")

PROBES: Final = (
    _probe(
        "read_host",
        tries="Opens a file of the host by its path there.",
        why="A forgotten bind mount or a shared root is the plainest escape; pods with hostPath "
        "were a step of the 2026 intrusion.",
        breach="The host's file opens, or the host sees it opened.",
        witness=Witness.CANARY,
        quick=True,
    ),
    _probe(
        "write_host",
        tries="Writes to a file of the host by its path there.",
        why="A writable share of the host is code execution on the host: cron, authorized_keys, "
        "the runtime's own binaries.",
        breach="The host's file was changed.",
        witness=Witness.CANARY,
        quick=True,
    ),
    _probe(
        "walk_up",
        tries="Goes up from the working directory and from the root, 64 times, and looks whether "
        "it stands above the root.",
        why="chroot is left this way by whoever stands outside it; CVE-2024-21626 gave a "
        "container a working directory of the host's.",
        breach="A directory above the root is reached.",
        quick=True,
    ),
    _probe(
        "host_socket",
        tries="Connects to a socket of the host by its path there.",
        why="Services trust whoever reaches their socket; a mounted docker.sock is root of the "
        "host.",
        breach="The host's listener hears a connection.",
        witness=Witness.SOCKET,
        quick=True,
    ),
    _probe(
        "runtime_sockets",
        tries="Connects to the sockets of Docker, containerd, Podman, CRI-O, systemd, D-Bus, "
        "udev, libvirt, snapd, and looks whose they are.",
        why="Each of them starts programs as the host's root; published examples of sandboxes "
        "mount docker.sock.",
        breach="One of them accepts a connection and is of no process of the cell.",
        quick=True,
    ),
    _probe(
        "host_abstract",
        tries="Connects to an abstract socket of the host.",
        why="Abstract sockets belong to the network namespace and know no file permission: "
        "CVE-2020-15257.",
        breach="The host's listener hears a connection.",
        witness=Witness.ABSTRACT,
        quick=True,
    ),
    _probe(
        "shim_sockets",
        tries="Connects to what /proc/net/unix has of containerd's shims, X11 and D-Bus, and "
        "looks whose it is.",
        why="CVE-2020-15257: containerd-shim's abstract socket, reachable with the host's "
        "network, starts containers at will.",
        breach="One of them accepts a connection and is of no process of the cell.",
        quick=True,
    ),
    _probe(
        "credentials",
        tries="Reads where machines keep what they are trusted by: service account tokens, "
        "Kubernetes and cloud-init configurations.",
        why="A service account token in a pod carried the 2026 intrusion from one machine to a "
        "whole cluster.",
        breach="One of the files has content.",
        quick=True,
    ),
)
