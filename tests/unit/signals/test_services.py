"""What decoy services hold: its own for each range, valid for the stand-in that serves it."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from tests.fakes.asgi import context

from belljar.network.stand_ins import make
from belljar.policy.guarding import LOGIN_SERVICES, SERVICE_PORTS, DecoyKind, DecoySpec
from belljar.signals.credentials import KEY_BYTES, fingerprint, public_blob, public_line, public_of
from belljar.signals.decoys import Minted, mint, mint_service

KEY = b"k" * KEY_BYTES
LOGIN_FILES = {
    DecoyKind.DOTENV: "",
    DecoyKind.TEXT: "{url} {user} {password} {host} {port} {secret}",
}


def made(kind: DecoyKind, scope: str = "range", **more: object) -> Minted:
    """One with three rows."""
    place = "" if kind is DecoyKind.METADATA else "crm.corp.internal"
    spec = DecoySpec(id="crm", kind=kind, place=place, count=3, **more)  # type: ignore[arg-type]
    return mint_service(KEY, scope, spec)


@pytest.mark.parametrize("kind", SERVICE_PORTS)
def test_a_service_is_made_for_one_range(kind: DecoyKind) -> None:
    """The same for the same range and key; for another no value is. Each value is in what the
    gateway is handed, none in a repr, and nothing says what it is."""
    one = made(kind)
    assert one == made(kind)
    assert not {value.text for value in one.values} & {
        value.text for value in made(kind, "other").values
    }
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


@pytest.mark.parametrize("kind", SERVICE_PORTS)
@pytest.mark.parametrize("file", LOGIN_FILES)
def test_a_file_holds_the_login_of_its_service(kind: DecoyKind, file: DecoyKind) -> None:
    """Host and password stand in it; the password stays the service's value, not the file's."""
    login = made(kind).login
    assert login is not None
    spec = DecoySpec(id="env", kind=file, service="crm", place="/srv/x", template=LOGIN_FILES[file])
    minted = mint(KEY, "cell", spec, login=login)
    text = minted.files[0].content.decode()
    assert login.password in text
    assert login.host in text
    assert "{" not in text
    assert login.password not in {value.text for value in minted.values}
    assert all(value.text in text for value in minted.values)


@pytest.mark.promise("5.6")
@pytest.mark.parametrize(
    ("place", "known"), [("b.corp.internal", "b.corp.internal"), ("b.x:2222", "[b.x]:2222")]
)
def test_a_key_file_leads_to_its_server(place: str, known: str) -> None:
    """Its private key is the one of the service's fingerprint, and its host key the service's
    own."""
    spec = DecoySpec(id="jump", kind=DecoyKind.SSH, place=place)
    service = mint_service(KEY, "range", spec)
    assert service.login is not None
    file = DecoySpec(id="key", kind=DecoyKind.SSH_KEY, service="jump")
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
