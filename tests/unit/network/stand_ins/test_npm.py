"""The npm registry, asked directly: what it serves, and what clients want to change."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.registries import Ledger, ask, context_for, make_tar

from belljar.network.gateway.context import App
from belljar.network.stand_ins import npm as packages
from belljar.network.stand_ins.files import StoredFile
from belljar.network.stand_ins.npm import make
from belljar.network.stand_ins.registry import PackageError

CONTENT = b"secret" * 30_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=9,
)


def document(name: str = "leak", version: str = "1.0.0") -> bytes:
    """What `npm publish` sends."""
    return json.dumps(
        {
            "_id": name,
            "name": name,
            "dist-tags": {"latest": version},
            "versions": {version: {"name": name, "version": version}},
            "access": "public",
            "_attachments": {
                f"{name}-{version}.tgz": {
                    "data": base64.b64encode(CONTENT).decode(),
                    "length": len(CONTENT),
                }
            },
        }
    ).encode()


def shelved(path: Path) -> StoredFile:
    """A file as a directory's list has it."""
    return StoredFile(name=path.name, path=path, size_bytes=0, mtime_s=0)


def pack(directory: Path, name: str, version: str, **more: object) -> Path:
    """A packed package."""
    manifest = json.dumps({"name": name, "version": version, **more}).encode()
    return make_tar(
        directory / f"{name.replace('/', '-')}-{version}.tgz", {"package/package.json": manifest}
    )


@pytest.fixture
def ledger() -> Ledger:
    """What the registry recorded."""
    return Ledger()


@pytest.fixture
def app(tmp_path: Path, ledger: Ledger) -> App:
    """A registry with two versions of a package, and a scoped one."""
    pack(tmp_path, "left", "1.0.0", description="Pads on the left")
    pack(tmp_path, "left", "1.1.0", description="Pads on the left")
    pack(tmp_path, "@team/right", "2.0.0", keywords=["pad"])
    return make(context_for(tmp_path, ledger))


def test_audits_are_no_attempts(app: App, ledger: Ledger) -> None:
    """npm goes on without; they change nothing, so they are no attempts."""
    assert ask(app, "POST", "/-/npm/v1/security/advisories/bulk", body=b"{}").status == 404
    assert ask(app, "POST", "/-/npm/v1/security/audits/quick", body=b"{}").status == 404
    assert ask(app, "GET", "/-/ping").json == {}
    assert ledger.attempts == []


@pytest.mark.parametrize(
    "name", ["", "../x", "@a", "@a/b/c", "a/b", "-/x", ".x", "a" * 215, "a b", "a\n"]
)
def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    """What could be read as a path of the registry's own, or another's scope."""
    manifest = json.dumps({"name": name, "version": "1.0.0"}).encode()
    make_tar(tmp_path / "a.tgz", {"package/package.json": manifest})
    with pytest.raises(PackageError, match="no name"):
        packages.read_package(shelved(tmp_path / "a.tgz"))


@given(st.binary(max_size=300), st.booleans())
def test_any_file_is_read_or_refused(tmp_path: Path, content: bytes, as_manifest: bool) -> None:
    """Broken archives and broken manifests are `PackageError`, nothing else."""
    path = tmp_path / "a.tgz"
    if as_manifest:
        make_tar(path, {"package/package.json": content})
    else:
        path.write_bytes(b"\x1f\x8b\x08\0" + content)
    try:
        packages.read_package(shelved(path))
    except PackageError as error:
        assert str(error)  # noqa: PT017 - both ways are right; this one must say why


def test_a_publish_is_recorded_and_never_served(app: App, ledger: Ledger) -> None:
    """Name, version, size, digest of the package itself and that a token was shown, not the
    token."""
    reply = ask(
        app, "PUT", "/leak", headers={"authorization": "Bearer npm_hunter2"}, body=document()
    )
    assert (reply.status, reply.json["ok"]) == (201, True)
    (event,) = ledger.attempts
    expected = {
        "what": "publish",
        "registry": "npm",
        "name": "leak",
        "version": "1.0.0",
        "filename": "leak-1.0.0.tgz",
        "refused": "",
        "credentials": "bearer",
    }
    assert expected.items() <= event.items()
    assert (event["size_bytes"], event["sha256"]) == (
        len(CONTENT),
        hashlib.sha256(CONTENT).hexdigest(),
    )
    assert "hunter2" not in str(event)
    assert ledger.bodies[0][0].content == CONTENT[: 64 << 10]
    assert ask(app, "GET", "/leak").status == 404


def test_a_login_is_recorded_without_its_password(app: App, ledger: Ledger) -> None:
    """The registry knows no users; nothing of the document is kept."""
    login = json.dumps({"name": "eve", "password": "hunter2"}).encode()
    assert ask(app, "PUT", "/-/user/org.couchdb.user:eve", body=login).status == 404
    assert [event["what"] for event in ledger.attempts] == ["change"]
    assert "hunter2" not in str(ledger.attempts) + str(ledger.bodies)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/left/-rev/1-x"),
        ("PUT", "/left/-rev/1-x"),
        ("PUT", "/-/package/a/dist-tags/latest"),
        ("DELETE", "/-/user/token/npm_x"),
        ("PATCH", "/anything/at/all"),
    ],
)
def test_other_changes_are_recorded_and_change_nothing(
    app: App, ledger: Ledger, method: str, path: str
) -> None:
    """Unpublishing, moving a tag, logging out, and what this registry doesn't know."""
    before = ask(app, "GET", "/left").body
    ask(app, method, path, body=b'"1.0.0"')
    assert [event["what"] for event in ledger.attempts] == ["change"]
    assert ask(app, "GET", "/left").body == before


def test_what_is_no_document_is_recorded(app: App, ledger: Ledger) -> None:
    """With the reason."""
    assert ask(app, "PUT", "/leak", body=b"[1]").status == 400
    assert [(event["what"], event["refused"]) for event in ledger.attempts] == [
        ("publish", "not a JSON object")
    ]


@given(
    st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(["/x", "/-/user/org.couchdb.user:x", "/x/-rev/1", "/-/v1/login"]),
)
@settings(deadline=None)
def test_any_document_is_answered_and_recorded(body: bytes, path: str) -> None:
    """No document of a guest's is an error of ours."""
    ledger = Ledger()
    reply = ask(make(context_for(Path("/nonexistent"), ledger)), "PUT", path, body=body)
    assert reply.status in {200, 201, 400, 404}
    assert len(ledger.attempts) == 1


def test_the_longest_words_fit_an_event() -> None:
    """Every field full of what JSON writes longest, a hundred of each."""
    ledger = Ledger()
    many = {"\U0001f4a3" * 500 + str(number): "\U0001f4a3" * 500 for number in range(100)}
    value = {
        "versions": many,
        "dist-tags": many,
        "_attachments": many,
        "access": "\U0001f4a3" * 500,
    }
    reply = ask(
        make(context_for(Path("/nonexistent"), ledger)),
        "PUT",
        "/" + "\U0001f4a3" * 500,
        body=json.dumps(value).encode(),
    )
    assert (reply.status, len(ledger.attempts)) == (201, 1)
