"""The probe program in a cell with a port: what it takes for the port, and how long it waits for a
world that is far away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.machine import PATIENCE_S
from tests.security.slow_world import OWN_MAC
from tests.security.test_probes_can_fail import PROGRAM, answers

pytestmark = pytest.mark.root


def said_with(mac: str, *names: str) -> dict[str, str]:
    """What the program says of each probe, told that its port has that MAC."""
    world = [
        sys.executable,
        str(Path(__file__).with_name("slow_world.py")),
        str(PROGRAM),
        mac,
        *names,
    ]
    ran = subprocess.run(
        ["unshare", "--net", *world],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stderr
    return answers(ran.stdout, len(names))


@pytest.mark.promise("2.5")
def test_a_device_of_the_ports_name_with_another_address_is_not_the_port() -> None:
    """It is one more way out, and so is each route by it."""
    names = ("network.interfaces", "network.routes")
    assert all(said.startswith("absent\t") for said in said_with(OWN_MAC, *names).values())
    assert all(
        said.startswith("reached\t") for said in said_with("02:00:00:00:00:08", *names).values()
    )


@pytest.mark.promise("2.5")
def test_an_answer_from_far_away_is_waited_for() -> None:
    """A datagram that is answered after longer than anything on this host takes is answered; a
    refusal is none, and neither is one that a raw socket hears beside it."""
    names = (
        "network.udp4",
        "network.ping4",
        "network.raw4",
        "network.dns_public",
        "network.everyone",
    )
    said = said_with(OWN_MAC, *names)
    assert said.pop("network.udp4") == "reached\t1.1.1.1 port 443 answers"
    assert all(rest.startswith("denied\t") for rest in said.values()), said
