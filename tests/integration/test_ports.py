"""A container's and a gVisor cell's port on a range's network, for root and for an ordinary user: a
link that a helper puts into the jail from a network namespace without any uplink. What the cell can
do with it, what it can't, and that nothing is left however it ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.as_user import REPOSITORY, subordinate_uids
from tests.integration.conftest import Belljar
from tests.integration.processes import wait_for

from belljar.isolation.identity import RANGES_START
from belljar.process import ProcessId, identify, is_alive, kill, namespaces_of

pytestmark = [pytest.mark.root]
TIERS = ("container", "gvisor")
PROGRAM = "tests/integration/port_owner.py"
SCRIPTS = (PROGRAM, "tests/integration/range_stand_in.py")
EPERM, EACCES, EROFS, EADDRNOTAVAIL = 1, 13, 30, 99
IPV4 = "0800"


@dataclass(frozen=True)
class Owner:
    """Runs `port_owner.py` as root or as an ordinary user, and that user's command line. `ids`: who
    a cell's stage and its workload's root are on the host."""

    start: Callable[..., subprocess.Popen[bytes]]
    belljar: Belljar
    ids: tuple[int, int]

    def run(self, tier: str, mode: str) -> dict[str, Any]:
        """All that it says, to its end."""
        with self.start(tier, mode) as process:
            said, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
        return merged(said.splitlines())


def merged(lines: Sequence[bytes]) -> dict[str, Any]:
    """JSON lines, each with names of its own."""
    return {name: value for line in lines for name, value in json.loads(line).items()}


@pytest.fixture(params=["root", "user"])
def owner(request: pytest.FixtureRequest) -> Iterator[Owner]:
    """Once for root (under either event loop), once for an ordinary user with subordinate ids and
    control groups."""
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    if request.param == "root":
        belljar = Belljar(request.getfixturevalue("vm_home"))
        environment = belljar.environment(
            PYTHONPATH=f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
        )
        argv = (sys.executable, str(REPOSITORY / PROGRAM))
        loops = {"container": "asyncio", "gvisor": "trio"}
        yield Owner(
            lambda tier, mode: subprocess.Popen(
                (*argv, tier, mode, loops[tier]), env=environment, **pipes
            ),
            belljar,
            ids=(RANGES_START, RANGES_START + 1),
        )
        assert belljar.leftovers() == []
        return
    user = request.getfixturevalue("grouped")
    checkout = user.libraries.parent / "ports"
    for name in SCRIPTS:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, checkout / name)
    environment = user.environment(PYTHONPATH=f"{user.libraries}:{checkout}")

    def start(*words: str) -> subprocess.Popen[bytes]:
        given = user.groups.enter(
            [user.python, str(checkout / PROGRAM), *words], uid=user.uid, gid=user.gid
        )
        return subprocess.Popen(given, env=environment, cwd="/", start_new_session=True, **pipes)

    yield Owner(start, user, ids=(user.uid, subordinate_uids(user.uid).start))


def until_it_waits(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What is said of the stage that waits for its link."""
    line = (process.stdout or pytest.fail("no pipe")).readline()
    assert line, (process.stderr or pytest.fail("no pipe")).read().decode()
    return dict(json.loads(line))


def process_of(pid: int) -> ProcessId:
    """It lives."""
    found = identify(pid)
    assert found is not None
    return found


def supervisor_of(pid: int) -> int:
    """A stage's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_in_use(namespace: int) -> bool:
    """Whether any process is in this network namespace."""
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if str(link.readlink()) == f"net:[{namespace}]":
                return True
        except OSError:
            continue
    return False


def first_ids(pid: int) -> tuple[int, int]:
    """Of the two lines of its map, as the host counts."""
    _, stage, _, _, workload, _ = Path(f"/proc/{pid}/uid_map").read_text().split()
    return int(stage), int(workload)


def settings_of(pid: int) -> list[str]:
    """The first port that is everybody's, who may ping, and whether IPv6 is off, as the network
    namespace of that process has them."""
    names = (
        "ipv4/ip_unprivileged_port_start",
        "ipv4/ping_group_range",
        "ipv6/conf/all/disable_ipv6",
        "ipv6/conf/default/disable_ipv6",
    )
    return seen_from(pid, "/usr/bin/cat", *(f"/proc/sys/net/{name}" for name in names)).splitlines()


def links_in(pid: int) -> dict[str, list[str]]:
    """Addresses by link, there."""
    links = json.loads(seen_from(pid, "/sbin/ip", "-j", "address"))
    return {link["ifname"]: [address["local"] for address in link["addr_info"]] for link in links}


def seen_from(pid: int, *argv: str) -> str:
    """What a program says in that process's network namespace."""
    words = ("/usr/bin/nsenter", "--net", "--target", str(pid), *argv)
    return subprocess.run(words, capture_output=True, check=True, text=True).stdout


@pytest.mark.parametrize("tier", TIERS)
def test_what_a_cell_can_do_with_its_port(owner: Owner, tier: str) -> None:
    """It reaches what its gateway leads to, by address and as itself, and has the range's resolver;
    it changes no link, address, route or neighbour, forges no packet, has no IPv6; nothing but IPv4
    comes out of it (no ARP, no neighbour discovery); its end is the link's end."""
    said = owner.run(tier, "use")
    assert "found" in said, said
    assert said["errors"] == ""
    found, there = said["found"], said["there"]
    assert found["gateway"] == found["after"] == ["10.77.0.1", 10, 10]
    assert found["large"] == ["10.77.0.53", 8 << 20, 8 << 20]
    assert found["resolver"] == "nameserver 10.77.0.53\n"
    assert found["edited"] is None
    assert found["hosts"] == "127.0.1.1"
    assert (found["raw"], found["packet"], found["ipv6"]) == (EPERM, EPERM, EADDRNOTAVAIL)
    assert found["changed"] == []
    assert found["low_port"] == 0
    assert found["addresses"] == {"lo": ["127.0.0.1/8"], "eth0": ["10.77.0.2/32"]}
    assert found["mtu"] == 1500
    if tier == "container":  # gVisor's network settings and pings are its own kernel's
        assert (found["ping"], found["forwarding"], found["low_ports_closed"]) == (
            EACCES,
            EROFS,
            EROFS,
        )
    assert there["peers"] == {"10.77.0.2": 3}
    assert set(there["frames"]) == {IPV4}
    assert there["links"] == ["lo"]
    assert said["entries"] == 0
    assert said["events"][-1] == "cell.destroyed"


@pytest.mark.parametrize("tier", TIERS)
def test_a_port_that_can_not_be_attached(owner: Owner, tier: str) -> None:
    """The cell ends with the range's own words, before anything of the runtime's ran; its
    destruction is on record and nothing is left."""
    said = owner.run(tier, "refuse")
    assert said["error"] == "HostError: the range is gone"
    assert said["events"] == ["cell.planned", "cell.starting", "cell.destroyed", "cell.failed"]
    assert (said["there"]["links"], said["entries"]) == (["lo"], 0)


def test_a_stage_that_dies_while_it_waits(owner: Owner) -> None:
    """What is told is how the stage ended, not that a link could not be put into nothing; no link
    is left."""
    with owner.start("container", "hold") as process:
        waiting = until_it_waits(process)
        assert waiting["status"]["NoNewPrivs"] == "1"
        stage, workload = first_ids(waiting["stage"])
        assert (stage, workload) == owner.ids or (
            owner.ids[0] <= stage and workload == stage + 1
        )  # other tests hold ids too
        assert settings_of(waiting["stage"]) == ["0", "1\t0", "1", "1"]
        assert links_in(waiting["stage"]) == {"lo": ["127.0.0.1"]}
        assert {waiting[name] for name in ("net", "user")}.isdisjoint(
            namespaces_of(os.getpid()).values()
        )
        kill(process_of(waiting["stage"]))
        output, errors = process.communicate(b"go on\n", timeout=60)
    assert process.returncode == 0, errors.decode()
    said = merged(output.splitlines())
    assert said["error"].startswith("CellError: the jail ended while it came up"), said
    assert (said["there"]["links"], said["entries"]) == (["lo"], 0)


@pytest.mark.parametrize("tier", TIERS)
def test_an_owner_that_is_killed_while_the_stage_waits(owner: Owner, tier: str) -> None:
    """Stage and supervisor end by themselves, the network namespace with them; what the journal
    still knows is reaped."""
    with owner.start(tier, "hold") as process:
        waiting = until_it_waits(process)
        stage = process_of(waiting["stage"])
        watched = [stage, process_of(supervisor_of(stage.pid))]
        process.kill()
        wait_for(lambda: not any(map(is_alive, watched)), "the end of the jail")
    wait_for(lambda: not is_in_use(waiting["net"]), "the end of the namespace")
    reaped = owner.belljar("reap")
    assert reaped.returncode == 0, reaped.stderr
