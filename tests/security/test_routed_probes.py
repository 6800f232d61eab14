"""The probe program in a cell with a port."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
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
    """A datagram that is answered after longer than anything on this host takes is answered."""
    short = ("udp4", "ping4", "raw4", "dns_public", "everyone")
    names = [f"network.{name}" for name in short]
    said = said_with(OWN_MAC, *names)
    assert said.pop("network.udp4") == "reached\t1.1.1.1 port 443 answers"
    assert all(rest.startswith("denied\t") for rest in said.values()), said


@pytest.mark.parametrize("name", ["host_udp", "host_tcp", "host_tcp6"])
def test_a_socket_that_reached_itself_has_not_reached_the_host(name: str) -> None:
    """The kernel may give a socket the port that it connects to, and nobody refuses anything."""
    setup = "echo 40000 40000 > /proc/sys/net/ipv4/ip_local_port_range"
    assert said_of_a_closed_port(name, setup) == "denied"


def test_a_lost_refusal_is_not_a_way_out() -> None:
    """A datagram to a closed port of one's own machine has not reached the host, though the kernel
    was too busy to deliver its refusal."""
    # One ICMP message has 62 bytes here.
    rules = "add table inet t { chain c { type filter hook output priority 0; "
    rules += "icmp type destination-unreachable quota until 100 bytes drop; }; }"
    assert said_of_a_closed_port("host_udp", f"nft '{rules}'") == "denied"


def said_of_a_closed_port(name: str, setup: str) -> str:
    """Return what a probe says of port 40000, where nothing listens, in a namespace prepared so."""
    given = "".join(f"{each}=40000\n" for each in ("udp", "tcp", "tcp6"))
    script = f'ip link set lo up && {setup} && exec "$0" "$1"'
    argv = ["unshare", "--net", "sh", "-c", script, str(PROGRAM), f"network.{name}"]
    return ran(argv, 1, input=f"token=t\nnonce=x\n{given}")[f"network.{name}"].split("\t")[0]
