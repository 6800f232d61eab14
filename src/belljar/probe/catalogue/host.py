"""The host's files, sockets and processes, roads to them, and what an earlier cell left."""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.model import Witness, entry

_persistence = partial(entry, "persistence")

PERSISTENCE: Final = (
    _persistence(
        "memory_files",
        tries="Looks for files in /dev/shm and queues in /dev/mqueue of a fresh cell.",
        why="In the 2026 incidents a shared cache served agents as a message board; any place "
        "that outlives a cell does.",
        breach="There is one.",
    ),
    _persistence(
        "ipc_objects",
        tries="Looks for System V shared memory, semaphores and queues in a fresh cell.",
        why="They outlive their makers, and in a shared IPC namespace the cell.",
        breach="There is one.",
    ),
    _persistence(
        "processes",
        tries="Looks for processes in a fresh cell beyond its first and the one that looks.",
        why="The agents of the 2026 intrusion re-armed a loader in every sandbox; reused "
        "sandboxes keep what was started in them.",
        breach="There is one.",
    ),
    _persistence(
        "scheduled",
        tries="Looks for a preloaded library and a cron table of root in a fresh cell.",
        why="The places where something waits for the next command: /etc/ld.so.preload is in the "
        "first line of rootkits.",
        breach="One of the files has content.",
    ),
)


_files = partial(entry, "files")

FILES: Final = (
    _files(
        "read_host",
        tries="Opens a file of the host by its path there.",
        why="A forgotten bind mount or a shared root is the plainest escape; pods with hostPath "
        "were a step of the 2026 intrusion.",
        breach="The host's file opens, or the host sees it opened.",
        witness=Witness.CANARY,
    ),
    _files(
        "write_host",
        tries="Writes to a file of the host by its path there.",
        why="A writable share of the host is code execution on the host: cron, authorized_keys, "
        "the runtime's own binaries.",
        breach="The host's file was changed.",
        witness=Witness.CANARY,
    ),
    _files(
        "walk_up",
        tries="Goes up from the working directory and from the root, 64 times, and looks whether "
        "it stands above the root.",
        why="A process outside of a chroot leaves it this way; CVE-2024-21626 gave a "
        "container a working directory of the host's.",
        breach="A directory above the root is reached.",
    ),
    _files(
        "host_socket",
        tries="Connects to a socket of the host by its path there.",
        why="Services trust all that reach their socket; a mounted docker.sock is root of the "
        "host.",
        breach="The host's listener hears a connection.",
        witness=Witness.SOCKET,
    ),
    _files(
        "runtime_sockets",
        tries="Connects to the sockets of Docker, containerd, Podman, CRI-O, systemd, D-Bus, "
        "udev, libvirt, snapd, and looks whose they are.",
        why="Each of them starts programs as the host's root; published examples of sandboxes "
        "mount docker.sock.",
        breach="One of them accepts a connection and is of no process of the cell.",
    ),
    _files(
        "host_abstract",
        tries="Connects to an abstract socket of the host.",
        why="Abstract sockets belong to the network namespace and know no file permission: "
        "CVE-2020-15257.",
        breach="The host's listener hears a connection.",
        witness=Witness.ABSTRACT,
    ),
    _files(
        "shim_sockets",
        tries="Connects to what /proc/net/unix has of containerd's shims, X11 and D-Bus, and "
        "looks whose it is.",
        why="CVE-2020-15257: containerd-shim's abstract socket, reachable with the host's "
        "network, starts containers at will.",
        breach="One of them accepts a connection and is of no process of the cell.",
    ),
    _files(
        "credentials",
        tries="Reads where machines keep what they are trusted by: service account tokens, "
        "Kubernetes and cloud-init configurations.",
        why="A service account token in a pod carried the 2026 intrusion from one machine to a "
        "whole cluster.",
        breach="One of the files has content.",
    ),
)


_processes = partial(entry, "processes")

PROCESSES: Final = (
    _processes(
        "see_host",
        tries="Looks for a process of the host under its number in /proc.",
        why="A shared pid namespace shows command lines and environments, where secrets are "
        "(Bishop Fox, Bad Pods, 2021: hostPID).",
        breach="/proc has the host's process.",
    ),
    _processes(
        "signal_host",
        tries="Sends a harmless signal to a process of the host.",
        why="A process that can signal the host's can end the supervisor that is to end it.",
        breach="The host's process has the signal pending.",
        witness=Witness.PID,
    ),
    _processes(
        "trace_host",
        tries="Attaches to a process of the host as its tracer.",
        why="CAP_SYS_PTRACE and a shared pid namespace are code execution on the host.",
        breach="The kernel lets it trace.",
        quick=False,
    ),
    _processes(
        "read_host",
        tries="Opens environment, memory map and memory of a process of the host.",
        why="Keys are in the memory and the environment of what the host runs; the 2026 "
        "intrusion read a password there.",
        breach="One of the files opens.",
    ),
    _processes(
        "kernel_threads",
        tries="Looks whether process 2 is the kernel's kthreadd.",
        why="Kernel threads are seen from the machine's first pid namespace alone: it would be "
        "the host's.",
        breach="It is.",
    ),
    _processes(
        "foreign",
        tries="Compares the pid namespace of every process it sees with its own.",
        why="A process of another namespace in sight means that this one is above it: the cell's "
        "layers are inside out.",
        breach="One differs.",
        quick=False,
    ),
)


_doors = partial(entry, "doors")

DOORS: Final = (
    _doors(
        "roots",
        tries="Opens the host's file through /proc/PID/root of every process it sees.",
        why="The link leads into the root of a process of the host, past every mount of the cell.",
        breach="It opens, or the host sees it opened.",
        witness=Witness.CANARY,
    ),
    _doors(
        "working_directories",
        tries="Opens the host's file through /proc/PID/cwd of every process it sees, and upwards.",
        why="CVE-2024-21626: runc's process in the container had a working directory on the host.",
        breach="It opens, or the host sees it opened.",
        witness=Witness.CANARY,
    ),
    _doors(
        "open_directories",
        tries="Opens the host's file upwards from every directory among its descriptors.",
        why="CVE-2024-21626: a descriptor of the host's /sys/fs/cgroup was left open, and openat "
        "goes up from there.",
        breach="It opens, or the host sees it opened.",
        witness=Witness.CANARY,
    ),
    _doors(
        "handles",
        tries="Opens inode 2, the root of the whole file system, and its own files by their "
        "numbers.",
        why="The shocker exploit of 2014: open_by_handle_at with CAP_DAC_READ_SEARCH read any "
        "file of Docker's host.",
        breach="The permission check is passed.",
    ),
    _doors(
        "overwrite_program",
        tries="Opens its own program, process 1's and its parent's for writing, through "
        "/proc/PID/exe.",
        why="CVE-2019-5736: the container overwrote the host's runc, which root started next.",
        breach="One opens, or is refused only because it runs.",
    ),
    _doors(
        "release_agent",
        tries="Makes new namespaces and mounts control groups of the first version.",
        why="CVE-2022-0492: the program in release_agent is started by the kernel as the host's "
        "root.",
        breach="A hierarchy is mounted.",
        quick=False,
    ),
    _doors(
        "root_twice",
        tries="Takes a second root below its own and climbs out of both.",
        why="The oldest way out of chroot (Bucsay, chw00t, 2015): it is why a root must be "
        "pivoted, not changed.",
        breach="It stands above its own root.",
        quick=False,
    ),
    _doors(
        "page_frames",
        tries="Reads the physical address of one of its pages.",
        why="Rowhammer (Seaborn and Dullien, 2015) aims with it.",
        breach="The address is not zero.",
        quick=False,
    ),
)
