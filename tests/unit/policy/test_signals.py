"""The blocks `decoys`, `guard` and `on`."""

from __future__ import annotations

import pytest

from belljar.errors import PolicyError
from belljar.policy.guarding import SERVICE_ROWS
from belljar.policy.load import parse_policy
from belljar.policy.model import Policy

SERVICE = """network: {stand_ins: {shop: {kind: smtp, names: [shop.corp.internal]}}}
decoys:
  - {id: crm, kind: http, place: "CRM.corp.internal:8080"}
  - {id: env, kind: dotenv, service: crm}
  - {id: note, kind: text, place: /srv/note, service: crm, template: "{url} {password}"}
"""


def policy(block: str) -> Policy:
    text = f"belljar: 1\nrisk: low\n{block}\n".encode()
    return parse_policy(text, source="x", base=None, default_name="x").policy


@pytest.mark.promise("5.6")
def test_a_service_has_a_name_a_port_and_a_network() -> None:
    """Its name is kept as the network has it; what is left out is its kind's."""
    service, *_ = policy(SERVICE).decoys
    assert (service.host, service.port, service.count) == ("crm.corp.internal", 8080, SERVICE_ROWS)
    assert policy(SERVICE.replace(":8080", "")).decoys[0].port == 80
    with pytest.raises(PolicyError, match=r"network: \{default: deny\}"):
        policy("decoys: [{id: a, kind: http, place: x.example}]")
    text = NETWORK + "decoys: [{id: j, kind: %s, place: b.i}, {id: k, kind: ssh_key, service: j}]"
    assert policy(text % "ssh").decoys[1].service == "j"
    with pytest.raises(PolicyError):
        policy(text % "redis")


NETWORK = "network: {default: deny}\n"
REFUSED = [
    NETWORK + "decoys: [{id: c, kind: redis, place: c.example, count: 3}]",
    "decoys: [{id: a, kind: aws}]",
    "decoys: [{id: a, kind: dotenv}, {id: a, kind: dotenv}]",
    "decoys: [{id: a, kind: text, place: /a, template: no value in it}]",
    "decoys: [{id: a, kind: dotenv, place: ../a}]",
    NETWORK + 'decoys: [{id: a, kind: http, place: "x.example:53"}]',
    NETWORK + "decoys: [{id: a, kind: http, place: metadata.google.internal}]",
    "decoys: [{id: a, kind: metadata}]",
    NETWORK + "decoys: [{id: a, kind: metadata}, {id: b, kind: metadata}]",
    "network: {stand_ins: {m: {kind: metadata}}}\ndecoys: [{id: a, kind: metadata}]",
    "decoys: [{id: a, kind: dotenv, service: b}, {id: b, kind: dotenv}]",
    SERVICE.replace("dotenv", "aws_credentials"),
    SERVICE.replace("id: crm", "id: shop").replace("service: crm", "service: shop"),
    SERVICE.replace("CRM.corp", "shop.corp"),
    "guard: {protect: [{id: a, file: a.csv, value: b}]}",
    *("guard: {action: {range: redact}}", "guard: {action: {model: block}}"),
    *("guard: {classes: [shoes]}", "on: {decoy_used: stop}", "on: [breach]"),
]


@pytest.mark.parametrize("block", REFUSED)
def test_what_a_policy_cannot_say(block: str) -> None:
    """It is refused."""
    with pytest.raises(PolicyError):
        policy(block)
