"""What the program is told: every key that it asks for, and nothing that names this host unless a
person asked."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from tests.fakes.probing import FakeProbed

from belljar.probe import catalogue
from belljar.probe.model import Witness
from belljar.probe.run import cell_parameters, host_parameters

SOURCE = Path(__file__).parents[3] / "native" / "probes"
NAMES_THE_HOST = {"namespaces", "hostname", "boot_id", "machine_id"}


def test_every_key_of_the_program_is_told() -> None:
    """Each parameter that an attempt reads is told, and none that nobody knows."""
    files = [file for file in sorted(SOURCE.glob("*.c")) if file.name != "canary.c"]  # no probe
    text = "".join(file.read_text() for file in files)
    read = set(re.findall(r'(?:needed|needed_number|parameter)\((?:f, )?"(\w+)"\)', text))
    source = Path(catalogue.__file__).with_suffix(".toml").read_text()
    listed = set(re.findall(r"^#   (\w+): ", source, re.MULTILINE))
    told = {*cell_parameters(FakeProbed().plan, fresh=True), *host_parameters(whole=True)}
    watched = {*Witness, "nonce", "token", "interface", "interface_mac"}
    assert read | told <= listed
    assert read <= told | watched | NAMES_THE_HOST


def test_what_is_tried_over_is_what_the_plan_allows() -> None:
    """Only a fresh cell is asked for leftovers."""
    plan = FakeProbed().plan
    limits = {"processes": plan.limits.processes, "disk_bytes": plan.limits.disk_bytes}
    for fresh in (False, True):
        told = cell_parameters(plan, fresh=fresh)
        for name, value in {**limits, "fresh": int(fresh)}.items():
            assert told[name] == str(value), name


@pytest.mark.promise("7.3")
def test_the_quick_set_is_told_nothing_of_the_host() -> None:
    """Where hostile code has run, the program learns neither the host's name nor its ids."""
    assert not NAMES_THE_HOST & set(host_parameters(whole=False))
    assert host_parameters(whole=True)["hostname"] == socket.gethostname()
