"""Decoys by kind, and what decoy services hold: real to their readers, and nobody else's."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import OrderedDict
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from tests.fakes.web import context

from belljar.network.stand_ins import make
from belljar.policy.guarding import LOGIN_SERVICES, SERVICE_PORTS, DecoyKind
from belljar.policy.model import DecoySpec
from belljar.signals.decoys import (
    BASE62,
    DAY_S,
    FILES,
    KEY_BYTES,
    MAX_AGE_DAYS,
    Minted,
    RandomStream,
    card,
    digest,
    digests,
    fingerprint,
    github_token,
    iban,
    mint,
    mint_service,
    public_blob,
    public_line,
    public_of,
)
from belljar.signals.detectors import Patterns
from belljar.signals.scanner import Scanner
from belljar.signals.values import ScanSpec

KEY, OTHER_KEY = b"k" * KEY_BYTES, b"o" * KEY_BYTES
labels = st.text(max_size=8)


def stream(label: str) -> RandomStream:
    return RandomStream(KEY, label)


@pytest.mark.promise("5.6")
@given(labels)
def test_cards_accounts_and_tokens_have_their_check_digits(label: str) -> None:
    """Luhn, modulo 97, and CRC-32 in base 62 at the end of GitHub's."""
    number = card(stream(label))
    doubled = [int(d) * (2 if i % 2 == 0 else 1) for i, d in enumerate(number)]
    assert sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0
    assert re.fullmatch(r"9999\d{12}", number)
    account = iban(stream(label))
    assert int(account[4:] + "1314" + account[2:4]) % 97 == 1
    assert re.fullmatch(r"DE\d\d00\d{16}", account)
    token = github_token(stream(label))
    crc = 0
    for digit in token[34:]:
        crc = crc * 62 + BASE62.index(digit)
    assert crc == binascii.crc32(token[4:34].encode())


def test_names_change_no_value_that_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faker's names differ between its versions."""
    spec = DecoySpec.model_construct(id="crm", kind=DecoyKind.SPREADSHEET, count=5)
    first = mint(bytes(KEY_BYTES), "s", spec)
    monkeypatch.setattr("faker.providers.person.en_US.Provider.last_names", OrderedDict(Other=1.0))
    second = mint(bytes(KEY_BYTES), "s", spec)
    assert first.values == second.values
    assert first.files != second.files


def spec(kind: DecoyKind, name: str = "bait") -> DecoySpec:
    return DecoySpec.model_construct(
        id=name,
        kind=kind,
        count=3,
        template="the code is {secret}" if kind is DecoyKind.TEXT else "",
    )


def texts(minted: Minted) -> set[str]:
    return {value.text for value in minted.values}


@pytest.mark.promise("5.6")
@pytest.mark.parametrize("kind", FILES)
def test_values_belong_to_one_key_cell_and_decoy(kind: DecoyKind) -> None:
    """What depends on nothing else is the same; with another key, cell or id no value is."""
    one = mint(KEY, "cell-a", spec(kind))
    assert one == mint(KEY, "cell-a", spec(kind))
    at_home = mint(KEY, "cell-a", spec(kind), home="/home/x")
    assert one.values == at_home.values or kind is DecoyKind.SSH_KEY
    others = (
        mint(OTHER_KEY, "cell-a", spec(kind)),
        mint(KEY, "cell-b", spec(kind)),
        mint(KEY, "cell-a", spec(kind, "other")),
    )
    for other in others:
        assert not texts(one) & texts(other)
    content = b"\0".join(file.content for file in one.files)
    assert one.values
    assert all(value.text.encode() in content for value in one.values)
    assert not any(value.text in repr(one) for value in one.values)


MARKS = (b"decoy", b"belljar", b"honey", b"fake", b"canary", b"example")


@pytest.mark.promise("5.6")
@pytest.mark.parametrize("kind", FILES)
def test_nothing_marks_a_decoy_as_one(kind: DecoyKind) -> None:
    """No word of this program is in its path or its content."""
    minted = [mint(KEY, cell, spec(kind)) for cell in ("cell-a", "cell-b")]
    for file in minted[0].files:
        text = (file.path.encode() + file.content).lower()
        assert not any(word in text for word in MARKS)
    assert FILES[kind][0].startswith("~/")
    ages = [[file.age_s for file in decoy.files] for decoy in minted]
    assert all(0 < age_s <= (1 + MAX_AGE_DAYS) * DAY_S for age_s in (*ages[0], *ages[1]))
    assert all(len(set(each[:2])) == 1 for each in ages)
    steps = [[age - each[0] for age in each] for each in ages]
    assert len(ages[0]) < 3 or steps[0] != steps[1]


@pytest.mark.promise("5.6")
def test_a_value_is_traced_to_its_cell_and_decoy() -> None:
    """With the key and the digests on record; another key or value leads nowhere."""
    kinds = (DecoyKind.AWS_CREDENTIALS, DecoyKind.SPREADSHEET)
    made = [mint(KEY, cell, spec(kind, kind.value)) for cell in ("a", "b") for kind in kinds]
    known = {
        text: (decoy.cell_id, value_id)
        for decoy in made
        for value_id, text in digests(KEY, decoy).items()
    }
    for decoy in made:
        for value in decoy.values:
            assert known[digest(KEY, value.text)] == (decoy.cell_id, value.id)
            assert digest(OTHER_KEY, value.text) not in known
    assert digest(KEY, "nobody's value") not in known


@pytest.mark.promise("5.6")
def test_a_kubeconfig_leads_to_its_server() -> None:
    """As kubectl reads it: by its current context, which names a cluster and a user."""
    minted = mint(KEY, "cell", spec(DecoyKind.KUBECONFIG))
    config = YAML(typ="safe").load(minted.files[0].content)
    words = ("context", "cluster", "user")
    named = {(word, each["name"]): each[word] for word in words for each in config[f"{word}s"]}
    context = named["context", config["current-context"]]
    server = urlsplit(named["cluster", context["cluster"]]["server"])
    token = named["user", context["user"]]["token"]
    assert (minted.place, server.scheme, server.port) == ("/root/.kube/config", "https", 6443)
    assert texts(minted) == {server.hostname, token}


@pytest.mark.promise("5.6")
def test_api_keys_have_their_vendors_shapes() -> None:
    """The guard's own detectors know each; in base64, too, each is this decoy's."""
    minted = mint(KEY, "cell", spec(DecoyKind.API_KEY))
    content = minted.files[0].content
    found = Patterns(()).find(content, lambda: None)
    shapes = {f"bait/{cls}": content[start:end].decode() for start, end, cls in found}
    assert shapes == {value.id: value.text for value in minted.values}
    scanner = Scanner(ScanSpec(values=minted.values, key_hex=KEY.hex()))
    hits = scanner.scan(base64.b64encode(content)).hits
    assert {hit.value_id for hit in hits if hit.cls == "decoy_api_key"} == shapes.keys()


def made(kind: DecoyKind, scope: str = "range") -> Minted:
    place = "" if kind is DecoyKind.METADATA else "crm.corp.internal"
    spec = DecoySpec.model_construct(id="crm", kind=kind, place=place, count=3)
    return mint_service(KEY, scope, spec)


@pytest.mark.parametrize("kind", SERVICE_PORTS)
def test_a_service_is_made_for_one_range(kind: DecoyKind) -> None:
    """The same for the same range and key; for another no value is."""
    one = made(kind)
    assert one == made(kind)
    assert not texts(one) & texts(made(kind, "other"))
    held = json.dumps(dict(one.settings))
    for value in one.values:
        assert value.text in held
        assert value.text not in repr(one)
    has_rows = kind not in {DecoyKind.METADATA, *LOGIN_SERVICES}
    assert sum("card" in value.id for value in one.values) == 3 * has_rows
    assert not {"decoy", "belljar", "honey", "fake", "minted"} & set(
        held.lower().replace('"', " ").split()
    )
    make(kind.value, context(one.settings))


@pytest.mark.promise("5.6")
@pytest.mark.parametrize(
    ("place", "known"), [("b.corp.internal", "b.corp.internal"), ("b.x:2222", "[b.x]:2222")]
)
def test_a_key_file_leads_to_its_server(place: str, known: str) -> None:
    """Its key has the service's fingerprint, its host key is the service's own."""
    spec = DecoySpec.model_construct(id="jump", kind=DecoyKind.SSH, place=place)
    service = mint_service(KEY, "range", spec)
    assert service.login is not None
    file = DecoySpec.model_construct(id="key", kind=DecoyKind.SSH_KEY, service="jump")
    minted = mint(KEY, "cell", file, login=service.login)
    private, public, config, hosts = (each.content.decode() for each in minted.files)
    key = load_ssh_private_key(private.encode(), None)
    assert isinstance(key, Ed25519PrivateKey)
    blob = public_blob(key.public_key().public_bytes_raw())
    assert fingerprint(blob) == service.settings["fingerprint"]
    assert public.split()[1] == public_line(blob).split()[1]
    host_key = public_of(base64.b64decode(service.settings["host_key"]))
    assert hosts == f"{known} {public_line(public_blob(host_key))}\n"
    assert f"HostName {spec.host}\n" in config
    assert ("Port 2222" in config) == (spec.port == 2222)
    assert [value.text in private for value in minted.values] == [True]
