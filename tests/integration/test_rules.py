"""The rules of a range on this kernel, between a namespace and its cells', with root's rights and
with an ordinary user's. Looked at from the range's side."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

WORLD = Path(__file__).with_name("rules_world.py")
SOURCES = Path(__file__).parents[2] / "src"
DROPPED = {
    "another cell's address": "spoofed",
    "the gateway's address": "spoofed",
    "no address": "spoofed",
    "another MAC": "spoofed",
    "IPv6": "ipv6",
    "first fragment": "fragment",
    "later fragment": "fragment",
    "loose source route": "source_route",
    "record route": "options",
    "multicast": "multicast",
    "multicast MAC": "multicast",
    "broadcast": "broadcast",
    "broadcast MAC": "broadcast",
    "SCTP": "protocol",
    "loopback": "forbidden",
    "ARP": "arp",
}
REFUSED = {
    "stand-in's other port": ("ECONNREFUSED", "port"),
    "public address": ("ECONNREFUSED", "address"),
    "metadata": ("ECONNREFUSED", "forbidden"),
    "Alibaba's metadata": ("ECONNREFUSED", "forbidden"),
    "Azure's host": ("ECONNREFUSED", "forbidden"),
    "Oracle's metadata": ("ECONNREFUSED", "forbidden"),
    "LAN": ("ECONNREFUSED", "forbidden"),
    "another range": ("ECONNREFUSED", "forbidden"),
    "target's other port": ("ECONNREFUSED", "neighbour"),
    "agent from target": ("ECONNREFUSED", "neighbour"),
    "gateway's other port": ("ECONNREFUSED", "port"),
    "unused address": ("ECONNREFUSED", "address"),
    "QUIC": ("ECONNREFUSED", "udp"),
    "own resolver": ("ECONNREFUSED", "udp"),
    "UDP to LAN": ("ECONNREFUSED", "forbidden"),
    "echo": ("3/3", "icmp"),
}
EDITED = {
    "flush": "table arp range is gone",
    "delete table": "table inet range is gone",
    "delete arp": "table arp range is gone",
    "policy": "chain forward of inet range is",
    "insert": "rules prerouting of inet range have besides",
    "add": "rules output of inet range have besides",
    "flush chain": "rules checked of inet range lack",
    "element": "elements answered of inet range have besides",
    "element gone": "elements forbidden of inet range lack",
    "another table": "table ip nat is not ours",
    "another chain": "chain more of inet range is not ours",
    "order": "rules unnamed of inet range are in another order or number",
}


@pytest.fixture(scope="module", params=["root", "user"])
def who(request: pytest.FixtureRequest) -> list[str]:
    """How the world's process is started: with root's rights, or with none but those in a user
    namespace of its own, as an ordinary user's range."""
    if shutil.which("nft") is None or shutil.which("ip") is None:
        pytest.skip("needs nft and ip")
    if request.param == "root":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        return ["--net"]
    return ["--user", "--map-root-user", "--net"]


def world(who: list[str], trial: str, python: str) -> Any:  # noqa: ANN401 - what the world prints
    """Runs one world to its end and gives what it found; its namespaces end with it."""
    done = subprocess.run(
        ["unshare", *who, "--fork", "--kill-child", python, str(WORLD), trial],
        env={"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "PYTHONPATH": str(SOURCES)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(who: list[str], python: str) -> dict[str, Any]:
    """What the usual world found."""
    return dict(world(who, "usual", python))


def test_what_the_plan_names_is_reached_under_its_own_address(found: dict[str, Any]) -> None:
    """One listener on 0.0.0.0 knows which stand-in was meant; a target cell is reached directly,
    and its connection counted; the resolver answers."""
    services = found["services"]
    for name, port in (("shop", 80), ("db", 5432)):
        talk = services[name]
        assert (talk["asked"], talk["answered"], talk["as"][1]) == ("question", "answer", port)
        assert talk["as"][0] != talk["by"]
    assert services["shop"]["as"][0] != services["db"]["as"][0]
    assert services["shop counts"] == {}
    assert services["db counts"] == {"connection": 1}
    assert services["resolver"] == "question answered"


@pytest.mark.promise("5.4")
def test_segments_of_no_connection_are_told_once(found: dict[str, Any]) -> None:
    """In either direction; after a connection they are its own, and nothing is told."""
    assert found["services"]["db segments"] == [{}] * 4 + [{"segment": 1}, {}] * 2


@pytest.mark.promise("2.5")
def test_what_nobody_has_is_refused_at_once_and_counted_under_its_reason(
    found: dict[str, Any],
) -> None:
    """TCP gets a reset, everything else ICMP's port unreachable; exactly one counter moves, by
    one."""
    assert {name: (ended, moved) for name, (ended, moved) in found["refusals"].items()} == {
        name: (ended, {reason: 1}) for name, (ended, reason) in REFUSED.items()
    }


def test_packets_no_socket_would_send_are_dropped_and_counted(found: dict[str, Any]) -> None:
    """Each under its own reason, and nothing else moves: no answer leaves either."""
    assert found["frames"] == {name: {reason: 1} for name, reason in DROPPED.items()}


def test_refusals_are_logged_with_their_reason(found: dict[str, Any]) -> None:
    """The log group gives each refused packet once, in order."""
    assert found["log"] == ["port", "forbidden", "udp"]


def test_each_change_by_hand_is_named(found: dict[str, Any]) -> None:
    """What the kernel lists is what was rendered; after each of several edits the difference is
    told first of all; loading again hints it."""
    edits = found["edits"]
    assert edits["at first"] == []
    for name, told in EDITED.items():
        assert edits[name][0].startswith(told), name
        assert edits[f"{name}, repaired"] == []


def test_a_sink_gets_what_nobody_has_and_nothing_that_is_forbidden(
    who: list[str], python: str
) -> None:
    """Under the address and port that were meant; forbidden addresses and other cells are refused
    as ever, and stand-ins keep what is theirs."""
    found = world(who, "sink", python)
    assert found["public"]["as"] == ["8.8.8.8", 4444]
    assert found["stand-in's other port"]["as"] == [found["shop"]["as"][0], 81]
    assert found["shop"]["as"][1] == 80
    assert {found[name] for name in ("metadata", "LAN", "neighbour")} == {"ECONNREFUSED"}
    assert found["differences"] == []


def test_a_flood_is_refused_by_its_rate(who: list[str], python: str) -> None:
    """Of 40 connections and 40 queries at once, no more than the burst (and what a second or two
    let in) get through."""
    found = world(who, "floods", python)
    assert 30 <= found["connections"]["rate"] <= 35
    assert 30 <= found["queries"]["rate"] <= 35
