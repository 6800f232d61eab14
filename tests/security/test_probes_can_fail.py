"""Every probe, in surroundings that are weak in just the way it looks for, says `reached`. A probe
that can't fail proves nothing.

The worlds are in `weak_worlds.py`: throwaway namespaces on this host, in which the program of the
probes runs as it does in a cell. That the same program says otherwise in a cell is for the tests of
the tiers.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from tests.machine import PATIENCE_S

import belljar
from belljar.probe.catalogue import PROBES

PROGRAM = Path(belljar.__file__).parent / "_bin" / f"probe-{platform.machine()}"
NAMESPACES = (
    "--mount",
    "--pid",
    "--mount-proc",
    "--net",
    "--ipc",
    "--uts",
    "--fork",
    "--kill-child",
    "--",
)
ONLY_X86 = ("kernel.ports", "kernel.foreign_calls")

# world → the probes that must reach something in it. What the world is: its docstring.
REACHED_IN: dict[str, tuple[str, ...]] = {
    "privileged": (
        *(
            "kernel.helper_programs",
            "kernel.settings",
            "kernel.control_files",
            "kernel.sysfs",
            "kernel.masked_files",
        ),
        *(
            "kernel.aio",
            "kernel.page_cache",
            "kernel.other_processes",
            "kernel.counters",
            "channel.signal_holder",
        ),
        *(
            "kernel.addresses",
            "kernel.debug_files",
            "kernel.binary_formats",
            "kernel.log_read",
            "kernel.log_write",
        ),
        *(
            "kernel.control_groups",
            "kernel.bpf",
            "kernel.perf",
            "kernel.userfaultfd",
            "kernel.io_uring",
            "kernel.keys",
        ),
        *(
            "kernel.rare_sockets",
            "kernel.clock",
            "kernel.host_name",
            "kernel.reboot",
            "kernel.swap",
        ),
        *("kernel.accounting", "kernel.watch_files", "kernel.foreign_calls"),
        *("devices.block_made", "devices.character_made"),
        *(
            "mounts.memory",
            "mounts.processes",
            "mounts.kernel",
            "mounts.devices",
            "mounts.again",
            "mounts.new_calls",
        ),
        *("mounts.uncover", "mounts.pivot"),
        *(
            "namespaces.shared",
            "namespaces.make_user",
            "namespaces.make_others",
            "namespaces.clone_user",
        ),
        *(
            "namespaces.clone3_user",
            "namespaces.enter_first",
            "namespaces.host_ids",
            "namespaces.capabilities",
        ),
        *("namespaces.new_privileges", "namespaces.filter", "namespaces.regain"),
        *("network.administer", "network.machine_socket"),
        *("resources.core_files", "resources.priority", "resources.real_time"),
        *(
            "channel.trace_holder",
            "channel.read_holder",
            "channel.open_descriptors",
            "channel.borrow_descriptors",
        ),
        *(
            "channel.limit_holder",
            "doors.handles",
            "doors.overwrite_program",
            "doors.release_agent",
            "doors.page_frames",
        ),
        *("fingerprint.kernel_log", "fingerprint.container"),
    ),
    "beside": (
        *(
            "files.read_host",
            "files.write_host",
            "files.host_socket",
            "files.host_abstract",
            "files.credentials",
        ),
        *(
            "processes.see_host",
            "processes.signal_host",
            "processes.trace_host",
            "processes.read_host",
        ),
        *("processes.foreign", "network.host_tcp", "network.host_tcp6", "network.host_udp"),
        *(
            "doors.roots",
            "doors.working_directories",
            "doors.open_directories",
            "channel.descriptors",
        ),
    ),
    "served": ("files.runtime_sockets", "files.shim_sockets"),
    "networked": (
        *(
            "network.interfaces",
            "network.routes",
            "network.frames",
            "network.tcp4",
            "network.tcp6",
            "network.udp4",
        ),
        *(
            "network.udp6",
            "network.ping4",
            "network.ping6",
            "network.raw4",
            "network.raw6",
            "network.metadata",
        ),
        *(
            "network.metadata6",
            "network.metadata_alibaba",
            "network.metadata_azure",
            "network.metadata_tasks",
        ),
        *(
            "network.neighbours6",
            "network.usual_hosts",
            "network.everyone",
            "network.dns_configured",
        ),
        *("network.dns_public", "network.dns_public_tcp", "network.dns_tls"),
    ),
    "equipped": (
        *(
            "devices.block_present",
            "devices.memory_present",
            "devices.unusual",
            "devices.tunnel",
            "devices.consoles",
        ),
        *(
            "devices.terminal_input",
            "channel.port",
            "resources.device_files",
            "resources.terminals",
        ),
    ),
    "mounted": ("mounts.shared", "mounts.lasting", "mounts.served"),
    "used": (
        "persistence.memory_files",
        "persistence.ipc_objects",
        "persistence.processes",
        "persistence.scheduled",
    ),
    "telling": (
        *(
            "fingerprint.names",
            "fingerprint.paths",
            "fingerprint.environment",
            "fingerprint.mounts",
        ),
        *(
            "fingerprint.processes",
            "fingerprint.command_line",
            "fingerprint.host_identity",
            "fingerprint.firmware",
        ),
        *("fingerprint.processor", "fingerprint.devices", "fingerprint.inode_numbers"),
    ),
    "limited": (
        "resources.open_files",
        "resources.processes",
        "resources.disk",
        "resources.killed_last",
    ),
    "rooted": ("files.walk_up", "doors.root_twice"),
    "owning": ("kernel.persistent_keys",),
    "answering": ("kernel.modules", "kernel.kexec", "kernel.ports", "resources.raise_limits"),
    "sockets": ("channel.streams",),
    "bare": ("fingerprint.no_network",),
    "first": ("processes.kernel_threads",),
}


def said_in(world: str, names: tuple[str, ...]) -> dict[str, str]:
    """What the program says of each probe in that world."""
    argv = [
        sys.executable,
        str(Path(__file__).parent / "weak_worlds.py"),
        world,
        str(PROGRAM),
        *names,
    ]
    run = subprocess.run(
        ["unshare", *NAMESPACES, *argv],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stderr
    return answers(run.stdout, len(names))


def answers(output: str, count: int) -> dict[str, str]:
    """Name → outcome and detail, of a whole answer."""
    *lines, end = output.splitlines()
    assert end.startswith(f"end\t{count}\t")
    return {name: rest for name, _, rest in (line.partition("\t") for line in lines)}


def names_of(world: str) -> tuple[str, ...]:
    """The probes of a world that this architecture has."""
    return tuple(
        name for name in REACHED_IN[world] if platform.machine() == "x86_64" or name not in ONLY_X86
    )


def not_reached(said: dict[str, str]) -> dict[str, str]:
    """What failed to fail."""
    return {name: rest for name, rest in said.items() if not rest.startswith("reached\t")}


@pytest.mark.promise("2.9")
def test_every_probe_has_its_weakness() -> None:
    """No probe of the catalogue is without surroundings in which it must fail, and none is named
    that doesn't exist."""
    listed = [name for names in REACHED_IN.values() for name in names]
    assert sorted(listed) == sorted(probe.name for probe in PROBES)


@pytest.mark.promise("2.9")
@pytest.mark.root
@pytest.mark.parametrize(
    "world", [world for world in REACHED_IN if world not in ("sockets", "first")]
)
def test_it_reaches_what_is_left_open(world: str) -> None:
    """In a world with that weakness each of its probes says `reached`."""
    assert not_reached(said_in(world, names_of(world))) == {}


@pytest.mark.root
def test_a_service_of_the_cell_is_none_of_the_host() -> None:
    """A workload that runs its own Docker or X server has broken nothing."""
    said = said_in("serving", REACHED_IN["served"])
    assert all(rest.startswith("denied\t") for rest in said.values()), said


def test_a_socket_for_an_output_is_noticed() -> None:
    """A standard descriptor that is a socket of the host's is reported."""
    read, write = os.pipe()
    os.close(write)
    run = subprocess.run(
        [PROGRAM, "channel.streams"], stdin=read, capture_output=True, text=True, timeout=PATIENCE_S
    )
    os.close(read)
    assert answers(run.stdout, 1)["channel.streams"].startswith("denied\t")
    with Path(__file__).open("rb") as file:
        run = subprocess.run(
            [PROGRAM, "channel.streams"],
            stdin=file,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert answers(run.stdout, 1)["channel.streams"].startswith("reached\t")


def test_the_machines_own_processes_are_noticed() -> None:
    """Without a pid namespace, kernel threads are seen. Only looked for where this host's are
    visible to the test itself."""
    comm = Path("/proc/2/comm")
    if not comm.exists() or comm.read_text() != "kthreadd\n":
        pytest.skip("this test itself is in a pid namespace of its own")
    run = subprocess.run(
        [PROGRAM, "processes.kernel_threads"],
        input="",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert not_reached(answers(run.stdout, 1)) == {}
