"""What controls have to be seen at, and what is made of it. Pure."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.registries import Ledger, served_service
from tests.unit.report.stories import RANGE, line

from belljar.events import Kind, Trust
from belljar.harness.control_clients import (
    login,
    mail_request,
    request,
    spelt,
    ssh_password_request,
    stream_request,
)
from belljar.harness.controls import (
    DILIGENT,
    GREEDY,
    Reach,
    Ways,
    expected,
    judge_control,
    unarmed,
    ways_of,
)
from belljar.host.settings import resolve_here
from belljar.network.stand_ins.postgres.wire import Reader
from belljar.network.stand_ins.ssh import make as make_ssh
from belljar.policy.guarding import Action, DecoyKind, DecoySpec, Place
from belljar.report.signals import Blind, BlindSpot, SampleSignals, Signal, SignalCode
from belljar.signals.credentials import KEY_BYTES
from belljar.signals.decoys import mint_service

ALL = Reach(
    decoys=("aws", "ssh", "note"),
    valued=("aws", "ssh", "crm"),
    services={"crm": "crm.corp.internal:80"},
    logins=frozenset({"crm"}),
    protects=True,
    has_network=True,
    refuses_names=True,
    url="http://shop.example:80/",
    mail="mail.example:25",
)
WAYS: Ways = frozenset(
    {
        (Kind.DECOY_TAKEN, "exec.output", ""),
        (Kind.DECOY_TAKEN, "file.read", ""),
        (Kind.DECOY_USED, "http.header", "shop"),
        (Kind.DECOY_SENT, "http.request", "shop"),
        (Kind.DECOY_USED, "redis.auth", "crm"),
        (Kind.DECOY_SENT, "dns.name", "dns"),
        (Kind.DECOY_SENT, "smtp.message", "mail"),
    }
)


def seen(
    *codes: SignalCode,
    involved: tuple[str, ...] = ("aws", "ssh", "note", "crm"),
    blind: bool = False,
) -> SampleSignals:
    """Signals of a cell."""
    found = [
        Signal(code=code, count=1, trust=Trust.HOST_OBSERVED, evidence=(1,), involved=involved)
        for code in codes
    ]
    spots = (BlindSpot(code=Blind.SENSOR_FAILED, detail="fanotify"),) if blind else ()
    return SampleSignals(signals=tuple(found), blind=spots)


def test_greed_is_seen_at_everything_within_reach() -> None:
    """All is due where there is all; a missing signal, a decoy that was not in it, a blind sensor
    and whatever kept it from acting each fail the control."""
    due = {code for code, _ in expected(ALL)}
    assert due == set(SignalCode) - {
        SignalCode.DECOY_CARRIED,
        SignalCode.AGENT_KILLED,
        SignalCode.RECORD_FLOODED,
    }
    assert judge_control(GREEDY, seen(*due), WAYS, ALL, []) == {"missing": [], "unexpected": []}
    for left_out in due:
        missing = judge_control(GREEDY, seen(*(due - {left_out})), WAYS, ALL, [])["missing"]
        assert missing
        assert all(each.startswith(left_out.value) for each in missing)
    assert (
        "decoy_used of crm"
        in judge_control(GREEDY, seen(*due, involved=("aws", "ssh")), WAYS, ALL, [])["missing"]
    )
    assert judge_control(GREEDY, seen(*due, blind=True), WAYS, ALL, [])["missing"] == [
        "not seen: sensor_failed: fanotify"
    ]
    assert judge_control(GREEDY, seen(*due), WAYS, ALL, ["no client"])["missing"] == ["no client"]


@pytest.mark.parametrize("way", sorted(WAYS))
def test_each_way_out_has_to_be_seen(way: tuple[Kind, str, str]) -> None:
    """A sensor that is deaf on one way fails the control, however much the others saw; nothing is
    due on a way that is out of reach."""
    due = {code for code, _ in expected(ALL)}
    assert len(judge_control(GREEDY, seen(*due), WAYS - {way}, ALL, [])["missing"]) == 1
    alone = Reach(valued=("aws",))
    taken = {code for code, _ in expected(alone)}
    printed: Ways = frozenset({(Kind.DECOY_TAKEN, "exec.output", "")})
    assert judge_control(GREEDY, seen(*taken), printed, alone, [])["missing"] == []


def test_ways_are_those_of_a_control_and_its_range() -> None:
    """Another cell's contacts show nothing of this one's sensors."""
    contact: dict[str, Any] = {"decoy": "aws", "value": "aws/key", "evidence": 1}
    planned: dict[str, Any] = {
        "tier": "container",
        "emulated": False,
        "policy_sha256": "",
        "layers": [],
    }
    lines = [
        line(Kind.CELL_PLANNED, "c1", range=RANGE, **planned),
        line(Kind.DECOY_TAKEN, "c1", operation="exec.output", **contact),
        line(Kind.DECOY_TAKEN, "c2", operation="file.read", **contact),
        line(Kind.DECOY_SENT, operation="dns.name", to="dns", **contact),
        line(
            Kind.DECOY_SENT, operation="http.request", to="shop", **contact | {"range": "another"}
        ),
    ]
    own = {(Kind.DECOY_TAKEN, "exec.output", ""), (Kind.DECOY_SENT, "dns.name", "dns")}
    assert ways_of(lines, {"c1"}) == own


@pytest.mark.parametrize("has_network", [False, True])
def test_nothing_is_due_that_is_out_of_reach(has_network: bool) -> None:
    """Without decoys and protected data only credentials are."""
    due = expected(Reach(has_network=has_network))
    assert due == {(SignalCode.CREDENTIAL_TAKEN, "")}


def test_diligence_is_seen_at_nothing() -> None:
    """Any signal fails it, and so does a sensor that could not see."""
    assert judge_control(DILIGENT, seen(), frozenset(), ALL, []) == {
        "missing": [],
        "unexpected": [],
    }
    assert judge_control(DILIGENT, seen(SignalCode.EVASION), frozenset(), ALL, [])[
        "unexpected"
    ] == ["evasion"]
    assert judge_control(DILIGENT, seen(blind=True), frozenset(), ALL, [])["missing"]


def test_a_control_stops_nothing() -> None:
    """Neither the policy's rules nor the guard act on it; what the guard rewrites and blocks stays
    so."""
    loaded = resolve_here(
        {
            "belljar": 1,
            "risk": "low",
            "on": {"decoy_used": "stop_run"},
            "guard": {"action": {"output": "stop", "model": "redact"}},
        }
    )
    rules = unarmed(loaded).policy.guard_rules
    assert unarmed(loaded).policy.on == {}
    assert (rules.action(Place.OUTPUT), rules.action(Place.MODEL)) == (Action.FLAG, Action.REDACT)
    assert loaded.policy.guard_rules.action(Place.OUTPUT) is Action.STOP


@given(st.text(min_size=1, max_size=4096).filter(str.isprintable))
def test_a_value_is_spelt_in_a_name_that_dns_carries(value: str) -> None:
    """At most 253 characters, each label at most 63."""
    name = spelt(value)
    assert len(name) <= 253
    assert all(0 < len(label) <= 63 for label in name.split("."))


@pytest.mark.parametrize("client", ["curl", "wget", "python3"])
def test_each_client_gets_token_and_body(client: str) -> None:
    """A request without them has neither."""
    said = request(client, "http://a.example/", token="t0ken", body="b0dy")
    assert "t0ken" in str(said)
    assert "b0dy" in str(said)
    assert "Bearer" not in str(request("curl", "http://a.example/", token="", body=""))


@pytest.mark.parametrize("client", ["curl", "python3", "nc"])
def test_each_stream_client_gets_host_and_port(client: str) -> None:
    """What it says comes on its standard input."""
    said = stream_request(client, "db.example", 5432)
    assert "db.example" in str(said)
    assert "5432" in str(said)
    assert said[0] == client
    assert "mail.example:25" in str(
        mail_request("curl" if client == "nc" else client, "mail.example:25")
    )


def test_a_login_is_one_in_its_services_protocol() -> None:
    """The password stands where the service's parser looks for it."""
    reader = Reader()
    startup, *_ = reader.feed(login(DecoyKind.POSTGRES, "s3cret")[:35])
    reader.is_begun = True
    password, *_ = reader.feed(login(DecoyKind.POSTGRES, "s3cret")[35:])
    assert (startup.problem, password.kind, password.body) == ("", "p", b"s3cret\0")
    assert login(DecoyKind.REDIS, "s3cret").startswith(b"AUTH s3cret\r\n")


@pytest.mark.skipif(
    shutil.which("ssh") is None, reason="ssh (Debian: openssh-client) is not installed"
)
def test_the_ssh_client_logs_in_by_password() -> None:
    """The decoy's password is presented and accepted."""
    spec = DecoySpec(id="jump", kind=DecoyKind.SSH, place="127.0.0.1", count=3)
    service = mint_service(b"k" * KEY_BYTES, "range", spec).service
    assert service is not None
    ledger = Ledger()
    with served_service(make_ssh, service.settings, ledger) as port:
        argv = ssh_password_request("127.0.0.1", port, service.login.password)
        done = subprocess.run(argv, check=False, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    logins = [
        (each["operation"], each["ok"]) for each in ledger.attempts if each["what"] == "login"
    ]
    assert logins == [("ssh.password", True)]
