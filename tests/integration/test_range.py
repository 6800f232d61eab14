"""Ranges for real, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.pcapng import IN, OUT, packets
from tests.integration.as_user import (
    REPOSITORY,
    UsersBelljar,
    copy_distributions,
    copy_package,
    own,
    users_python,
)
from tests.integration.handed_groups import handed_groups
from tests.integration.processes import wait_for
from tests.integration.range_programs.groups import controllers
from tests.machine import PATIENCE_S, public_folder

from belljar.host.tools import MAPPERS
from belljar.isolation.reap import reap_now
from belljar.network.packets import SNAP_BYTES
from belljar.process import ProcessId, identify, is_alive

pytestmark = [pytest.mark.root, pytest.mark.slow]
_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DRIVER = ("-X", "faulthandler", "-m", "tests.integration.range_programs")
# The kernel takes a namespace away a moment after its last owner let go: until then a packet is
# refused, or nobody answers.
CUT_OFF = ("OSError 101", "ConnectionRefusedError 111", "TimeoutError None")


# One process of each plays all of a batch, one after the other; any other scenario has its own.
_ROOTS = "talk shut_in changed rules killed hang deaf many broken says_less"
_ENDS = "silent in_progress heavy last_words between"
_USERS = "talk shut_in killed"
BATCHES = {True: (_ROOTS.split(), _ENDS.split()), False: (_USERS.split(),)}


class Who:
    """Somebody who runs the driver, with a store of his own."""

    def __init__(self, user: UsersBelljar | None, home: Path) -> None:
        self.user, self.home = user, home
        self._seen: dict[str, dict[str, Any]] = {}

    def start(self, *scenarios: str) -> subprocess.Popen[bytes]:
        python = sys.executable if self.user is None else self.user.python
        argv = [python, *_DRIVER, str(self.home), *scenarios]
        if self.user is not None:
            return self.user.start_program(argv, subprocess.DEVNULL, {"PATH": _SEARCH})
        path = f"{REPOSITORY / 'src'}:{REPOSITORY}"
        env = {"PATH": _SEARCH, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        return subprocess.Popen(argv, stdout=pipe, stderr=pipe, stdin=none, env=env)

    def run(self, scenario: str) -> dict[str, Any]:
        if scenario not in self._seen:
            batches = (batch for batch in BATCHES[self.is_root] if scenario in batch)
            self._seen |= self._played(next(batches, [scenario]))
        seen = self._seen[scenario]
        assert "failed" not in seen, seen["failed"]
        return seen

    def _played(self, scenarios: list[str]) -> dict[str, dict[str, Any]]:
        with self.start(*scenarios) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # every thread's stack, on standard error
                try:
                    _, err = process.communicate(timeout=10)
                finally:
                    process.kill()
                pytest.fail(f"{scenarios} did not end: {err.decode(errors='replace')}")
        assert process.returncode == 0, err.decode()
        return dict(json.loads(out))

    @property
    def is_root(self) -> bool:
        return self.user is None


@pytest.fixture(scope="module")
def installed(ordinary_user: tuple[int, int]) -> Iterator[UsersBelljar]:
    """The package, what a range needs, and the driver, where an ordinary user can read them."""
    uid, gid = ordinary_user
    python = users_python(uid, gid)
    base = Path(tempfile.mkdtemp(prefix="range-user-", dir=public_folder()))
    base.chmod(0o755)
    try:
        libraries = copy_package(base / "lib")
        copy_distributions(["h11", "wsproto", "cryptography", "jinja2"], libraries)
        programs = "tests/integration/range_programs"
        shutil.copytree(REPOSITORY / programs, libraries / programs)
        (libraries / "tests/fakes").mkdir()
        for fake in ("pcapng.py", "recorder.py"):
            shutil.copy(REPOSITORY / "tests/fakes" / fake, libraries / "tests/fakes")
        yield UsersBelljar(base / "home", uid=uid, gid=gid, python=python, libraries=libraries)
    finally:
        shutil.rmtree(base)


@pytest.fixture(scope="module", params=["root", "user"])
def who(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Who]:
    """Root and an ordinary user in turn; afterwards nothing of theirs runs."""
    if request.param == "root":
        yield Who(None, tmp_path_factory.mktemp("store"))
        return
    if any(shutil.which(name, path=_SEARCH) is None for name in MAPPERS):
        pytest.skip("newuidmap and newgidmap are not installed")
    user: UsersBelljar = request.getfixturevalue("installed")
    user.home.mkdir(exist_ok=True)
    own(user.home, user.uid, user.gid)
    yield Who(user, user.home)
    wait_for(lambda: not user.processes(), "the end of the user's processes")


@pytest.fixture
def talked(who: Who) -> dict[str, Any]:
    return who.run("talk")


def assert_gone(seen: dict[str, Any]) -> None:
    """A destruction that looked everywhere it must and found nothing."""
    assert seen["clean"], seen
    assert seen["survivors"] == []
    assert seen["unproven"] == []
    assert seen["journal"] == []
    assert (seen["kinds"][0], seen["kinds"][-1]) == ("range.opening", "range.destroyed")


def test_what_is_there_answers_and_what_is_not_refuses(talked: dict[str, Any]) -> None:
    """Bytes go to the gateway and back by UDP and TCP, each to the address that was asked."""
    seen = talked
    assert_gone(seen)
    shop = seen["layout"]["names"][0]["address"]
    echoes = [f"echo {shop}:80 hello\n", f"echo {shop}:8080 hello\n", "echo hello\n"]
    assert seen["said"] == [*echoes, *["ConnectionRefusedError 111"] * 6]
    assert seen["also"] == [f"echo {shop}:80 hello\n"]
    wanted = {"port": 2, "address": 1, "neighbour": 1, "forbidden": 1}
    assert {name: seen["counters"][name] for name in wanted} == wanted
    assert seen["counters"]["udp"] >= 1
    fields = ("cell", "reason", "address", "port", "verdict")
    flows = {tuple(flow[name] for name in fields) for flow in seen["flows"]}
    metadata = ("agent", "forbidden", "169.254.169.254", 80, "refused")
    assert {("agent", "port", shop, 81, "refused"), metadata} <= flows
    assert next(flow["name"] for flow in seen["flows"] if flow["port"] == 81) == "shop.example"
    assert [stream["port"] for stream in seen["streams"]] == [80, 8080, 80]
    assert seen["deaths"] == []
    assert "BEGIN CERTIFICATE" in seen["certificate"]


def test_a_port_is_neutral_and_fixed(talked: dict[str, Any]) -> None:
    """A cell sees a plain `eth0` with one address, an on-link gateway and a neighbour that nobody
    can replace; when the range goes, the device goes.
    """
    seen = talked
    addresses, routes, neighbours = seen["inside"]
    port, resolver = seen["layout"]["cells"][0], seen["layout"]["resolver"]
    device = next(item for item in addresses if item["ifname"] != "lo")
    assert (device["ifname"], device["address"], device["mtu"]) == ("eth0", port["mac"], 1500)
    own_addresses = [(item["local"], item["prefixlen"]) for item in device["addr_info"]]
    assert own_addresses == [(port["address"], 32)]
    ways = [(route["dst"], route.get("gateway")) for route in routes]
    assert ways == [("default", resolver), (resolver, None)]
    known = [(item["dst"], item["lladdr"], item["state"]) for item in neighbours]
    assert known == [(resolver, port["gateway_mac"], ["PERMANENT"])]
    assert seen["device_gone"]


@pytest.mark.promise("5.4")
def test_the_packet_record_holds_every_frame(talked: dict[str, Any]) -> None:
    """One pcapng file of Ethernet frames with nanoseconds, whose flags say which way each went."""
    seen = talked
    data = bytes.fromhex(seen["pcap"])
    frames = [frame for _, frame, _ in packets(data)]
    ways = {(frame[6:12].hex(":"), direction) for _, frame, direction in packets(data)}
    ports = seen["layout"]["cells"]
    assert ways == {
        (port[name], way) for port in ports for name, way in (("mac", IN), ("gateway_mac", OUT))
    }
    assert any(b"hello" in frame for frame in frames)
    assert max(map(len, frames)) < SNAP_BYTES  # none was cut
    assert len(frames) >= seen["counters"]["packets_recorded"] > 20
    assert seen["counters"]["packets_not_recorded"] == 0
    assert seen["files"] == ["packets.pcapng"]


def test_rights_are_what_is_needed(who: Who, talked: dict[str, Any]) -> None:
    """A gateway has no capability."""
    fields = {
        name: dict(re.findall(r"^(\w+):\s+(.*)$", text, re.MULTILINE))
        for name, text in talked["status"].items()
    }
    sets = ("CapEff", "CapPrm", "CapBnd")
    assert {fields["gateway"][name] for name in (*sets, "CapAmb")} == {"0" * 16}
    net_admin, net_raw, sys_admin = 1 << 12, 1 << 13, 1 << 21
    allowed = net_admin | net_raw | (0 if who.is_root else sys_admin)
    assert {int(fields["supervisor"][name], 16) for name in sets} == {allowed}
    for part in fields.values():
        assert (part["Seccomp"], part["NoNewPrivs"]) == ("2", "1")
    if who.is_root:
        uids = {tuple(fields[name]["Uid"].split()) for name in fields}
        assert len(uids) == 2
        assert all(int(uid) >= 0x7000_0000 for four in uids for uid in four)


@pytest.mark.promise("2.6")
def test_a_gateway_is_shut_in(who: Who) -> None:
    """From inside: no connection, no socket, no file but its own."""
    tried = who.run("shut_in")["tried"]
    could = {"list /", "list up", "read own file", "scratch", "descriptors", "uid"}
    assert {
        name for name, outcome in tried.items() if not re.fullmatch(r"E[A-Z]+|MemoryError", outcome)
    } == could
    refused = {"socket inet", "socket unix", "socket netlink", "socket packet"}
    refused |= {"pair of sockets", "pipe", "epoll", "whether there is a process"}
    refused |= {
        "fork",
        "exec",
        "ptrace",
        "kill",
        "setuid",
        "unshare",
        "mount",
        "executable memory",
        "network devices",
    }
    assert {name: tried[name] for name in refused} == dict.fromkeys(refused, "EPERM")
    assert tried["open /etc/passwd"] == tried["open /proc"] == "ENOENT"
    assert tried["list /"] == tried["list up"] == "['s', 't']"
    assert tried["read own file"] == "'of the shop'"
    assert tried["make file in root"] == tried["unlink own file"] == "EROFS"
    assert tried["memory over the limit"] == "MemoryError"
    held = sorted(words.split()[1] for words in json.loads(tried["descriptors"].replace("'", '"')))
    assert held == [*["other"] * 2, *["pipe"] * 2, *["socket"] * 7]
    assert tried["uid"] == "(True, False)"


def assert_dead(seen: dict[str, Any], error: str, what: str) -> None:
    """A range that ended by itself, once, on record; its cell is cut off."""
    assert_gone(seen)
    ((found, why),) = seen["deaths"]
    assert (found, seen["checked"]) == (error, error)
    assert re.match(what, why), why
    assert seen["told"]
    assert seen["ended"]
    assert seen["kinds"].count("range.failed") == 1
    assert seen["refused"][0] in CUT_OFF


@pytest.mark.promise("2.5")
@pytest.mark.thorough_in("user")
def test_changed_rules_end_the_range(who: Who) -> None:
    """A table added by hand (`test_egress` flushes all): heard at once, whatever the interval."""
    assert_dead(who.run("rules"), "ContainmentBreach", "the range's network was changed: ")


@pytest.mark.promise("2.5")
@pytest.mark.thorough_in("user")
def test_what_else_stands_in_its_namespace_is_looked_at_too(who: Who) -> None:
    """A route, a rule of routing, a setting, or the other end of a port that is changed by hand:
    the next look says which, and it is a breach.
    """
    seen = who.run("changed")
    said = {
        "route": "a route that was not there: 0.0.0.0/0 by device 1 in table 254",
        "route of IPv6": "a route that was not there: 2001:db8::/32 by device 1 in table 254",
        "rule": "the policy of routing is another",
        "forwarding": "ipv4/ip_forward was 0 and is 1",
        "a port's own": "/accept_source_route was 0 and is 1",
        **({"moved": "the port of the cell agent leads elsewhere"} if who.is_root else {}),
    }
    assert seen.pop("nothing") == "nothing"
    assert seen.keys() == said.keys()
    for name, what in said.items():
        assert seen[name].startswith("ContainmentBreach: the range's network was changed: ")
        assert what in seen[name], name


@pytest.mark.promise("2.6")
def test_no_part_outlives_another(who: Who) -> None:
    """SIGKILL to one of them ends the range, on record, once; the cell's network is gone."""
    for victim, seen in who.run("killed").items():
        of = (
            "(supervisor|gateway) ended"
            if victim == "fork_server"
            else rf"{victim} ended \(SIGKILL\)$"
        )
        assert_dead(seen, "CellError", f"the range's {of}")


@pytest.mark.promise("2.6")
@pytest.mark.parametrize("who", ["root"], indirect=True)
def test_a_part_that_hangs_ends_the_range(who: Who) -> None:
    """SIGSTOP to one of them: it is noticed, it is on record as what it is."""
    seen = dict(who.run("hang"))
    for each in seen.values():
        each["journal"] = []  # the others may be there as yet
    shouted = seen.pop("shouted")
    assert_gone(shouted)
    ((error, what),) = shouted["deaths"]
    assert (shouted["told"], error, len(what) < 10_000) == (True, "CellError", True)
    for victim, of_victim in seen.items():
        hangs = f"the range's {victim} hangs: it has sent nothing for 3 s$"
        assert_dead(of_victim, "CellError", hangs)
    assert list((who.home / "journal").glob("r-*")) == []


@pytest.mark.promise("2.6")
@pytest.mark.parametrize("who", ["root"], indirect=True)
def test_an_owner_that_takes_in_nothing_finds_every_port_shut(who: Who) -> None:
    """While its ledger's disk does not answer, nobody watches."""
    seen = who.run("deaf")
    assert_gone(seen)
    assert seen["stuck"]
    assert seen["ended"]
    assert seen["up"] == []
    assert seen["told"]
    ((error, what),) = seen["deaths"]
    assert error == "CellError"
    assert re.match(
        r"the range's supervisor (ended|gave up: the owner: it has read nothing for too long)", what
    )


@pytest.mark.promise("2.6")
@pytest.mark.parametrize("who", ["user"], indirect=True)
def test_an_owner_that_is_killed_leaves_nothing(who: Who) -> None:
    """SIGKILL to the owner (root's: `test_range_crash_points`)."""
    who = fresh(who)
    with who.start("hold") as owner:
        assert owner.stdout is not None
        said = json.loads(owner.stdout.readline())
        found = [identify(pid) for pid in said["pids"]]
        assert None not in found
        parts = [process for process in found if process is not None]
        os.kill(owner.pid, signal.SIGKILL)
        owner.communicate()
    try:
        wait_for(_none_of(parts), "the end of the range's processes")
    finally:
        os.kill(said["cell"], signal.SIGKILL)
    entries = sorted(path.name for path in (who.home / "journal").iterdir())
    assert len(entries) == 2
    reaped = reap_now(who.home)
    assert [(one.kind, one.remaining) for one in reaped] == [("range", ()), ("range", ())]
    assert list((who.home / "journal").iterdir()) == []


def fresh(who: Who) -> Who:
    home = Path(tempfile.mkdtemp(dir=who.home))
    if who.user is not None:
        own(home, who.user.uid, who.user.gid)
    return Who(who.user, home)


def _none_of(processes: list[ProcessId]) -> Callable[[], bool]:
    return lambda: not any(is_alive(process) for process in processes)


@pytest.mark.promise("3.3")
@pytest.mark.thorough_in("user")
def test_many_at_once_and_none_reaches_another(who: Who) -> None:
    """Ranges share one fork server alone: each cell gets its own gateway, no neighbour's."""
    seen = who.run("many")
    assert [
        (re.match(r"echo [\d.]+:80 hello\n", own) is not None, other) for own, other in seen["said"]
    ] == [(True, "ConnectionRefusedError 111")] * 8
    assert seen["unproven"] == []
    assert (
        seen["fork_servers"],
        seen["deaths"],
        seen["survivors"],
        seen["clean"],
        seen["journal"],
    ) == (1, [], [], True, [])


@pytest.mark.promise("2.6", "5.4")
@pytest.mark.thorough_in("user")
def test_a_lying_gateway_and_a_full_record_end_the_range(who: Who) -> None:
    """What the protocol forbids is recorded as why the range ended."""
    both = who.run("broken")
    for lie, what in (
        ("lie", "a kind that a gateway can't record"),
        ("ask_model", "a request that no stand-in of this range makes"),
    ):
        seen = both[lie]
        assert (seen["asked"], seen["deaths"]) == (0, ["ProtocolViolation"])
        assert seen["reasons"] == [f"the gateway broke its protocol: {what}"]
        assert seen["destroyed"] == [True]
    seen = both["unrecorded"]
    assert_gone(seen)
    assert seen["deaths"][0][0] == "LedgerError"
    assert "echo" not in seen["said"][0]


@pytest.mark.promise("2.6", "5.4")
@pytest.mark.thorough_in("user")
@pytest.mark.parametrize(
    ("gateway", "reason", "unreported"),
    [
        ("say_nothing", "it has answered on a connection that it has not told of", 0),
        ("say_no_tls", "it has answered in TLS without a word of it", 1),
        ("keep_secrets", "it has answered in TLS, and kept the secrets to itself", 0),
        ("say_no_exchange", "", 1),
    ],
)
def test_a_gateway_that_answers_and_says_less_is_seen(
    who: Who, gateway: str, reason: str, unreported: int
) -> None:
    """The supervisor sees each answer: one without its event ends the range, or is counted."""
    seen = who.run("says_less")[gateway]
    told = [f"the gateway broke its protocol: {reason}"] if reason else []
    assert seen == {"reasons": told, "unreported": unreported}


# ---- control groups: root's as this host has them, a user's those that root hands out


@pytest.fixture
def grouped(who: Who) -> Iterator[Who]:
    if who.user is None:
        if set(controllers()) < {"cpu", "memory"}:
            pytest.skip("root can make no control groups here")
        yield who
        return
    with handed_groups(f"r{who.user.uid}-{os.getpid()}", who.user.uid, who.user.gid) as groups:
        yield Who(replace(who.user, groups=groups), who.home)


@pytest.mark.promise("2.6")
def test_a_range_s_processes_are_in_groups_of_its_own(grouped: Who) -> None:
    """Supervisor and gateway, and nobody else, in each."""
    both = grouped.run("groups")
    for seen in (both["burnt"], both["hoarded"]):
        assert_gone(seen)
        assert seen["groups"]
        assert seen["left"] == []
    seen = both["burnt"]
    assert (seen["members"], seen["throttled"], seen["deaths"]) == (True, True, [])
    seen = both["hoarded"]
    assert seen["told"]
    assert [error for error, _ in seen["deaths"]] == ["CellError"]
    assert seen["counters"]["oom_kills"] >= 1
    assert both["no_groups"] == {"error": "HostError", "journal": []}
