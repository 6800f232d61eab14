"""The probe program in a cell with a port: what it takes for the port, and how long it waits for a
world that is far away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.machine import PATIENCE_S
from tests.security.slow_world import OWN_MAC
from tests.security.test_probes_can_fail import PROGRAM, ran

pytestmark = pytest.mark.root


def said_with(mac: str, *names: str) -> dict[str, str]:
    """What the program says of each probe, told that its port has that MAC."""
    world = [sys.executable, str(Path(__file__).with_name("slow_world.py")), str(PROGRAM), mac]
    return ran(["unshare", "--net", *world, *names], len(names))


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
    short = ("udp4", "ping4", "raw4", "dns_public", "everyone")
    names = [f"network.{name}" for name in short]
    said = said_with(OWN_MAC, *names)
    assert said.pop("network.udp4") == "reached\t1.1.1.1 port 443 answers"
    assert all(rest.startswith("denied\t") for rest in said.values()), said


def test_a_lost_refusal_is_not_a_way_out() -> None:
    """A datagram to a closed port of one's own machine has not reached the host, though the kernel
    was too busy to deliver its refusal."""
    # One ICMP message has 62 bytes here.
    rules = "table inet t { chain c { type filter hook output priority 0; "
    rules += "icmp type destination-unreachable quota until 100 bytes drop; }; }"
    script = 'ip link set lo up && nft "$1" && printf "token=t\\nudp=9\\nnonce=x\\n" | "$2" "$3"'
    argv = ["unshare", "--net", "sh", "-c", script, "sh", f"add {rules}", str(PROGRAM)]
    tried = subprocess.run(
        [*argv, "network.host_udp"], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert tried.stdout.split("\t")[1] == "denied", tried.stdout
