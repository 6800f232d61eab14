"""Registries made from a setting: what they serve is whole, and who writes needs their token."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, ask, context_for

from belljar.network.gateway.context import App
from belljar.network.stand_ins import make
from belljar.policy.guarding import DecoyKind, DecoySpec
from belljar.signals.credentials import KEY_BYTES
from belljar.signals.decoy_services import Login
from belljar.signals.decoys import mint_service

FORM = b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nx\r\n'
FORM += b'--b\r\nContent-Disposition: form-data; name="version"\r\n\r\n1\r\n--b--\r\n'
UPLOAD = {"content-type": "multipart/form-data; boundary=b"}


def served(kind: DecoyKind, ledger: Ledger) -> tuple[App, Login]:
    """A decoy registry as the gateway makes it."""
    spec = DecoySpec(id="r", kind=kind, place="registry.example", count=3)
    service = mint_service(b"k" * KEY_BYTES, "range", spec).service
    assert service is not None
    context = replace(context_for(Path("/nonexistent"), ledger), settings=service.settings)
    return make(kind.value, context), service.login


def basic(user: str, password: str) -> dict[str, str]:
    """The field of basic credentials."""
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.promise("5.6")
def test_an_npm_package_that_leaks_the_registrys_token() -> None:
    """Its file has the digest that its document says; the older version holds the token, the newer
    doesn't."""
    app, login = served(DecoyKind.NPM, Ledger())
    document = ask(app, "GET", "/@platform/billing-client").json
    leaks = {}
    for version, about in document["versions"].items():
        content = ask(
            app, "GET", about["dist"]["tarball"].removeprefix("http://registry.example")
        ).body
        assert about["dist"]["shasum"] == hashlib.sha1(content, usedforsecurity=False).hexdigest()
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            names = [member.name for member in archive]
            assert "package/package.json" in names
            texts = [(archive.extractfile(name) or io.BytesIO()).read().decode() for name in names]
        leaks[version] = any(login.password in text for text in texts)
    assert leaks == {"1.4.1": True, "1.4.2": False}
    assert document["dist-tags"] == {"latest": "1.4.2"}


@pytest.mark.promise("5.6")
def test_a_wheel_that_leaks_the_indexs_token() -> None:
    """Each file of it has the digest of its RECORD."""
    app, login = served(DecoyKind.PYPI, Ledger())
    name = "billing_client-1.4.1-py3-none-any.whl"
    assert name in ask(app, "GET", "/simple/billing-client/").body.decode()
    with zipfile.ZipFile(io.BytesIO(ask(app, "GET", f"/packages/{name}").body)) as archive:
        texts = {info.filename: archive.read(info) for info in archive.infolist()}
    record = "billing_client-1.4.1.dist-info/RECORD"
    for path, digest, size in (line.split(",") for line in texts[record].decode().splitlines()):
        if path != record:
            found = (
                base64.urlsafe_b64encode(hashlib.sha256(texts[path]).digest()).decode().rstrip("=")
            )
            assert (digest, int(size)) == (f"sha256={found}", len(texts[path]))
    assert any(login.password.encode() in text for text in texts.values())


@pytest.mark.promise("5.6")
def test_who_writes_to_npm_needs_the_token() -> None:
    """Without it nothing is taken, and what was sent is on record; a login by password is refused
    too."""
    ledger = Ledger()
    app, login = served(DecoyKind.NPM, ledger)
    for path in ("/x", "/-/user/org.couchdb.user:me"):
        for headers in ({}, {"authorization": "Bearer wrong"}):
            assert (
                ask(
                    app, "PUT", path, headers=headers, body=b'{"name": "me", "password": "p"}'
                ).status
                == 401
            )
    assert [attempt["refused"] for attempt in ledger.attempts] == ["unauthorized"] * 4
    assert all(bodies[0].content.startswith(b"{") for bodies in ledger.bodies)
    assert ask(app, "GET", "/-/whoami").status == 401
    right = {"authorization": f"Bearer {login.password}"}
    assert ask(app, "GET", "/-/whoami", headers=right).json == {"username": login.user}
    assert ask(app, "PUT", "/x", headers=right, body=b"{}").status != 401


@pytest.mark.promise("5.6")
def test_who_uploads_to_pypi_needs_the_token() -> None:
    """Each upload is on record, with why it was refused."""
    ledger = Ledger()
    app, login = served(DecoyKind.PYPI, ledger)
    for headers, status in (
        ({}, 403),
        (basic("__token__", "no"), 403),
        (basic("__token__", login.password), 200),
    ):
        assert (
            ask(app, "POST", "/legacy/", headers={**UPLOAD, **headers}, body=FORM).status == status
        )
    assert [bool(attempt["refused"]) for attempt in ledger.attempts] == [True, True, False]


@pytest.mark.promise("5.6")
@pytest.mark.parametrize("service", ["git-upload-pack", "git-receive-pack"])
def test_who_pushes_to_git_needs_the_token(service: str) -> None:
    """Reading is open; a push is asked for credentials, so that git sends those that it has
    stored."""
    app, login = served(DecoyKind.GIT, Ledger())
    path, query = "/platform/deploy.git/info/refs", f"service={service}"
    reply = ask(app, "GET", path, query=query)
    if service == "git-upload-pack":
        assert reply.status == 200
        return
    assert reply.status == 401
    assert reply.headers["www-authenticate"].startswith("Basic")
    assert (
        ask(app, "POST", f"/platform/deploy.git/{service}", headers=basic("deploy", "no")).status
        == 401
    )
    assert ask(app, "GET", path, query=query, headers=basic("deploy", login.password)).status == 200
