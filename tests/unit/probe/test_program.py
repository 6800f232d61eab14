"""The probe program of this host's architecture, where it can try nothing."""

from __future__ import annotations

import resource
import subprocess

import pytest

from belljar.package import program_path

NAMES = """
files.read_host files.host_socket files.walk_up kernel.control_groups
devices.memory_present devices.block_present doors.handles network.host_tcp
"""


@pytest.mark.promise("4.6")
@pytest.mark.parametrize("name", NAMES.split())
def test_what_lacked_a_descriptor_was_not_tried(name: str) -> None:
    """An attempt that fails for want of descriptors was not refused."""

    def without_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))

    tried = subprocess.run(
        [str(program_path("probe")), name],
        input="canary=/etc/hostname\ntoken=t\nsocket=/run/x\ntcp=9\n",
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=without_descriptors,
    )
    assert tried.stdout.split("\t")[:2] == [name, "error"], tried.stdout
