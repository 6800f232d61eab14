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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.machine import PATIENCE_S

import belljar
from belljar.probe.catalogue import PROBES

PROGRAM = Path(belljar.__file__).parent / "_bin" / f"probe-{platform.machine()}"
NAMESPACES = (
    *("--mount", "--pid", "--mount-proc", "--net", "--ipc", "--uts"),
    *("--fork", "--kill-child", "--"),
)
ONLY_X86 = ("kernel.ports", "kernel.foreign_calls")

# world → the probes that must reach something in it. What the world is: its docstring.
REACHED_IN: dict[str, tuple[str, ...]] = {
    world: tuple(
        f"{group}.{name}"
        for group, names in (line.split(": ") for line in text.strip().splitlines())
        for name in names.split()
    )
    for world, text in {
        "privileged": """
kernel: helper_programs settings control_files sysfs masked_files aio page_cache
kernel: other_processes counters addresses debug_files binary_formats log_read log_write
kernel: control_groups bpf perf userfaultfd io_uring keys rare_sockets clock host_name
kernel: reboot swap accounting watch_files foreign_calls
channel: signal_holder trace_holder read_holder open_descriptors borrow_descriptors
channel: limit_holder
devices: block_made character_made
mounts: memory processes kernel devices again new_calls uncover pivot
namespaces: shared make_user make_others clone_user clone3_user enter_first host_ids
namespaces: capabilities new_privileges filter regain
network: administer machine_socket
resources: core_files priority real_time
doors: handles overwrite_program release_agent page_frames
fingerprint: kernel_log container
""",
        "beside": """
files: read_host write_host host_socket host_abstract credentials
processes: see_host signal_host trace_host read_host foreign
network: host_tcp host_tcp6 host_udp
doors: roots working_directories open_directories
channel: descriptors
""",
        "served": "files: runtime_sockets shim_sockets",
        "networked": """
network: interfaces routes frames tcp4 tcp6 udp4 udp6 ping4 ping6 raw4 raw6 metadata
network: metadata6 metadata_alibaba metadata_azure metadata_tasks neighbours6 usual_hosts
network: everyone dns_configured dns_public dns_public_tcp dns_tls
""",
        "equipped": """
devices: block_present memory_present unusual tunnel consoles terminal_input
channel: port
resources: device_files terminals
""",
        "mounted": "mounts: shared lasting served",
        "used": "persistence: memory_files ipc_objects processes scheduled",
        "telling": """
fingerprint: names paths environment mounts processes command_line host_identity firmware
fingerprint: processor devices inode_numbers
""",
        "limited": "resources: open_files processes disk killed_last",
        "rooted": """
files: walk_up
doors: root_twice
""",
        "owning": "kernel: persistent_keys",
        "answering": """
kernel: modules kexec ports
resources: raise_limits
""",
        "sockets": "channel: streams",
        "bare": "fingerprint: no_network",
        "first": "processes: kernel_threads",
    }.items()
}


def ran(argv: Sequence[str], count: int, **options: Any) -> dict[str, str]:  # noqa: ANN401
    """What a program of the probes says of each of so many."""
    run = subprocess.run(
        argv, check=False, capture_output=True, text=True, timeout=PATIENCE_S, **options
    )
    assert run.returncode == 0, run.stderr
    return answers(run.stdout, count)


def said_in(world: str, names: tuple[str, ...]) -> dict[str, str]:
    worlds = Path(__file__).parent / "weak_worlds.py"
    argv = [sys.executable, str(worlds), world, str(PROGRAM), *names]
    return ran(["unshare", *NAMESPACES, *argv], len(names))


def answers(output: str, count: int) -> dict[str, str]:
    *lines, end = output.splitlines()
    assert end.startswith(f"end\t{count}\t")
    return {name: rest for name, _, rest in (line.partition("\t") for line in lines)}


def names_of(world: str) -> tuple[str, ...]:
    return tuple(
        name for name in REACHED_IN[world] if platform.machine() == "x86_64" or name not in ONLY_X86
    )


def not_reached(said: dict[str, str]) -> dict[str, str]:
    return {name: rest for name, rest in said.items() if not rest.startswith("reached\t")}


@pytest.mark.promise("2.9")
def test_every_probe_has_its_weakness() -> None:
    """No probe is without surroundings in which it must fail, and none is made up."""
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
    argv = [str(PROGRAM), "channel.streams"]
    assert ran(argv, 1, stdin=read)["channel.streams"].startswith("denied\t")
    os.close(read)
    with Path(__file__).open("rb") as file:
        assert ran(argv, 1, stdin=file)["channel.streams"].startswith("reached\t")


def test_the_machines_own_processes_are_noticed() -> None:
    """Kernel threads are seen. Only where this host's are visible to the test itself."""
    comm = Path("/proc/2/comm")
    if not comm.exists() or comm.read_text() != "kthreadd\n":
        pytest.skip("this test itself is in a pid namespace of its own")
    assert not_reached(ran([str(PROGRAM), "processes.kernel_threads"], 1, input="")) == {}
