"""The rules of a range on this kernel, between a namespace and its cells', with root's rights and
with an ordinary user's. Looked at from the range's side. What they refuse and drop is shown by
`tests/security/test_egress`, on real ranges."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

WORLD = Path(__file__).with_name("rules_world.py")
SOURCES = Path(__file__).parents[2] / "src"
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
        env={
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
            "PYTHONPATH": f"{SOURCES}:{SOURCES.parent}",
        },
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


@pytest.mark.promise("5.4")
def test_what_the_plan_names_is_reached_under_its_own_address(found: dict[str, Any]) -> None:
    """One listener on 0.0.0.0 knows which stand-in was meant; a connection to a target cell ends at
    another, under the target's address, once the target has taken it from the client's address, and
    is refused as long as nobody listens there; the resolver answers."""
    services = found["services"]
    talk = services["shop"]
    assert (talk["asked"], talk["answered"], talk["as"][1]) == ("question", "answer", 80)
    assert talk["as"][0] != talk["by"]
    (address, port), is_client = services["db"]
    assert address not in (talk["as"][0], talk["by"])
    assert (port, is_client) == (5432, True)
    assert services["db refused"] == errno.ECONNREFUSED
    assert services["shop counts"] == {}
    assert services["db counts"] == {"connection": 1}
    assert services["resolver"] == "question answered"


@pytest.mark.promise("5.4")
def test_segments_of_no_connection_reach_nobody(found: dict[str, Any]) -> None:
    """In either direction: they end in the range's namespace."""
    assert [each["arrived"] for each in found["services"]["db segments"]] == [0, 0]


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
