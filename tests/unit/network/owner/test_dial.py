"""What may be dialled: upstreams of the plan alone, at public addresses alone, pinned, and on
record before it is done."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_network
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import HostError
from belljar.network.owner import dial
from belljar.network.owner.dial import (
    FORBIDDEN,
    Dialler,
    NotAnUpstreamError,
    Reach,
    problem_of,
    read_authorities,
    wanted,
)
from belljar.network.owner.relay import NotDialledError, RunSpending
from belljar.plan.network import DIAL_BYTES, NetworkPlan, UpstreamPlan


def upstream(host: str, *ports: int, budget_bytes: int = 1 << 20) -> UpstreamPlan:
    more: dict[str, Any] = {"methods": ("GET",), "run_budget_bytes": 100 << 20, "reason": "it is"}
    return UpstreamPlan(host=host, ports=ports, budget_bytes=budget_bytes, **more)


REAL = upstream("real.example", 80, 443)
PLAN = NetworkPlan(upstreams=(REAL, upstream("other.example", 8443, budget_bytes=1)))
PUBLIC = ("93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c")


def question(**changes: object) -> bytes:
    asked = {"host": "real.example", "port": 443, "stand_in": "upstream:real.example"}
    return json.dumps({**asked, **changes}).encode()


class World:
    """A resolver and a network that log their calls, and the events, in one order."""

    def __init__(self, *answers: tuple[str, ...] | OSError, dead: tuple[str, ...] = ()) -> None:
        self.log: list[tuple[Any, ...]] = []
        self._answers, self._dead = list(answers), dead
        self.near: tuple[Any, ...] | OSError = ()
        reach = Reach(
            resolve=self._resolve, connect=self._connect, networks_near=lambda: told(self.near)
        )
        self.spending = RunSpending()
        self.dialler = Dialler(PLAN, reach, self.spending)

    @property
    def told(self) -> str:
        return " ".join(entry[0] for entry in self.log)

    def dial(self, **changes: object) -> None:
        self.dialler.dial(question(**changes), self._say).close()

    def refuses(self, why: str, **changes: object) -> None:
        with pytest.raises((NotDialledError, OSError), match=why):
            self.dial(**changes)

    def _resolve(self, host: str, port: int) -> tuple[str, ...]:
        self.log.append(("resolved", host))
        return told(self._answers.pop(0))

    def _connect(self, address: str, port: int) -> socket.socket:
        self.log.append(("connected", address, port))
        if address in self._dead:
            raise ConnectionRefusedError(111, "Connection refused")
        return socket.socket()  # of TCP: what passed can be asked of it

    def _say(self, data: Mapping[str, Any]) -> None:
        self.log.append((data["verdict"], data["address"], data["problem"]))


def told(answer: tuple[Any, ...] | OSError) -> tuple[Any, ...]:
    if isinstance(answer, OSError):
        raise answer
    return answer


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_no_forbidden_address_passes_and_what_is_left_is_global(
    address: IPv4Address | IPv6Address,
) -> None:
    """An address passes only if it is global for Python and in no net of the list, as spelled."""
    if not problem_of(str(address)):
        assert address.is_global
        assert not address.is_multicast
        assert not any(address in net for net in FORBIDDEN)
    assert problem_of(str(address)) == problem_of(address.exploded)


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0", "0.1.2.3", "127.0.0.1", "10.1.2.3",  # noqa: S104 - refused, not bound
     "169.254.169.254", "168.63.129.16", "100.100.100.200", "224.0.0.1",
     "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "2606:2800::1%1", "fd00:ec2::254", "ff02::1", "2130706433", "0x7f.1",
     "127.1", "real.example", "", "93.184.215.14 "],
)  # fmt: skip
def test_what_is_no_public_address_is_refused(address: str) -> None:
    """Each by name; and what is no address in its plain spelling is none at all."""
    assert problem_of(address)


@pytest.mark.parametrize(
    "body",
    [
        question(host="elsewhere.example"), question(host="REAL.example"),
        question(host="other.example"),
        question(host="other.example", port=443, stand_in="upstream:other.example"),
        question(stand_in="upstream:other.example"), question(port=22), question(port="443"),
        question(port=443.0), question(port=True), question(host=["real.example"]),
        question(host=None), question(more=1), b"{}", b"[]", b"\xff", b"", b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_request_for_anything_else_is_a_violation(body: bytes) -> None:
    """Another host, port, pairing or type, or no request at all."""
    with pytest.raises(NotAnUpstreamError):
        wanted(body, PLAN)


def test_a_dial_is_on_record_before_it_is_done_and_its_answer_is_pinned() -> None:
    """Recorded before the name is resolved, and before the address is dialled."""
    world = World(PUBLIC[:1], ("127.0.0.1",))
    world.dial()
    world.dial(port=80)
    assert world.log == [
        ("looked_up", "", ""),
        ("resolved", REAL.host),
        ("dialled", PUBLIC[0], ""),
        ("connected", PUBLIC[0], 443),
        ("dialled", PUBLIC[0], ""),
        ("connected", PUBLIC[0], 80),
    ]


def test_a_refused_answer_stays_refused_and_is_on_record_each_time() -> None:
    """One private address among public ones: nothing is dialled or asked again."""
    world = World((PUBLIC[0], "10.0.0.1"), PUBLIC[:1])
    world.refuses(r"10\.0\.0\.1 is not a public one")
    world.refuses(r"10\.0\.0\.1 is not a public one")
    assert world.told == "looked_up resolved refused refused"


@pytest.mark.promise("2.7")
@pytest.mark.parametrize(
    ("address", "net"),
    [
        *((PUBLIC[0], net) for net in ("93.184.215.0/24", f"{PUBLIC[0]}/32")),
        *((PUBLIC[1], net) for net in ("2606:2800:21f::/48", f"{PUBLIC[1]}/128")),
    ],
)
def test_a_network_that_this_host_is_on_is_refused(address: str, net: str) -> None:
    """A LAN may have public addresses, and this host one of them."""
    world = World((address,))
    world.dial()
    world.near = (ip_network(net),)
    for _ in range(2):
        world.refuses("of this host, or of a network that it is on")
    assert world.told == "looked_up resolved dialled connected refused refused"


def test_what_is_no_upstream_or_not_on_record_is_not_resolved() -> None:
    """The violation is recorded before it is raised; what can't be recorded isn't looked up."""
    world = World(PUBLIC[:1])
    with pytest.raises(NotAnUpstreamError):
        world.dial(host="elsewhere.example")
    assert world.told == "refused"
    full = Mock(side_effect=OSError(28, "No space left on device"))
    with pytest.raises(OSError, match="No space"):
        world.dialler.dial(question(), full)
    assert world.told == "refused"


def test_the_roots_of_trust_are_those_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file of a task makes of the variable later names no authority."""
    (tmp_path / "own.pem").write_text("BEGIN CERTIFICATE of someone")
    ssl.create_default_context(cadata=(before := read_authorities()))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own.pem"))
    assert read_authorities() == before
    monkeypatch.setattr(dial, "_BUNDLE", "/nonexistent")
    monkeypatch.setattr(dial, "environment_at_start", lambda: {"SSL_CERT_FILE": "/nonexistent"})
    with pytest.raises(HostError, match="no bundle"):
        read_authorities()


@pytest.mark.promise("2.7")
def test_each_dial_costs_budget() -> None:
    """Also one that comes to nothing, at the first address alone."""
    dead = World(("1.0.0.1", "1.0.0.2"), dead=("1.0.0.1",))
    dead.refuses("no answer there")
    assert dead.spending.spent_bytes(REAL.host) == DIAL_BYTES
    assert dead.log[3:] == [
        ("connected", "1.0.0.1", 443),
        ("failed", "1.0.0.1", "Connection refused"),
    ]
    world = World(*[socket.gaierror(-3, "Temporary failure")] * 5000)
    for _ in range(REAL.budget_bytes // DIAL_BYTES):
        world.refuses("can't be resolved")
    resolved, why = len(world.log), "the upstream's budget for one sample is used up"
    world.refuses("budget for one sample is used up")
    assert world.log[resolved:] == [("refused", "", why)]
