"""What clients want to change in the npm registry: on record, answered, without effect."""

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
from belljar.network.stand_ins import npm as npm_app
from belljar.network.stand_ins.npm import make

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


@pytest.fixture
def ledger() -> Ledger:
    """What the registry recorded."""
    return Ledger()


@pytest.fixture
def app(tmp_path: Path, ledger: Ledger) -> App:
    """A registry with one package."""
    make_tar(tmp_path / "a.tgz", {"package/package.json": b'{"name": "a", "version": "1.0.0"}'})
    return make(context_for(tmp_path, ledger))


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


def test_a_document_in_another_encoding_is_none(app: App, ledger: Ledger) -> None:
    """It is on record as it came, and nothing is read out of it by guessing."""
    reply = ask(app, "PUT", "/leak", body=document().decode().encode("utf-16"))
    assert reply.status == 400
    (event,) = ledger.attempts
    assert (event["refused"], event["versions"]) == ("not a JSON object", [])


def test_a_new_version_of_a_served_package_stays_unknown(app: App) -> None:
    """What the directory says is what everybody sees."""
    assert ask(app, "PUT", "/a", body=document("a", "6.6.6")).status == 201
    assert list(ask(app, "GET", "/a").json["versions"]) == ["1.0.0"]


def test_a_login_gives_a_token_that_is_known(app: App, ledger: Ledger) -> None:
    """Any password will do; the record has its digest; `whoami` answers with the user, and 401
    without credentials."""
    login = json.dumps({"name": "eve", "password": "hunter2", "email": "eve@x.example"}).encode()
    reply = ask(app, "PUT", "/-/user/org.couchdb.user:eve", body=login)
    assert reply.status == 201
    assert ask(
        app, "GET", "/-/whoami", headers={"authorization": f"Bearer {reply.json['token']}"}
    ).json == {"username": "eve"}
    assert ask(app, "GET", "/-/whoami").status == 401
    (event,) = ledger.attempts
    assert (event["what"], event["user"], event["password_sha256"]) == (
        "login",
        "eve",
        hashlib.sha256(b"hunter2").hexdigest(),
    )
    assert "hunter2" not in str(event) + str(ledger.bodies)


@pytest.mark.parametrize(
    ("method", "path", "what"),
    [
        ("DELETE", "/a/-rev/1-x", "unpublish"),
        ("PUT", "/a/-rev/1-x", "unpublish"),
        ("DELETE", "/a/-/a-1.0.0.tgz/-rev/1-x", "unpublish"),
        ("PUT", "/-/package/a/dist-tags/latest", "tag"),
        ("DELETE", "/-/package/@s/a/dist-tags/latest", "tag"),
        ("DELETE", "/-/user/token/npm_x", "logout"),
        ("POST", "/-/npm/v1/tokens", "change"),
        ("PATCH", "/anything/at/all", "change"),
    ],
)
def test_other_changes_are_recorded_and_change_nothing(
    app: App, ledger: Ledger, method: str, path: str, what: str
) -> None:
    """Unpublishing, moving a tag, logging out, and what this registry doesn't know."""
    before = ask(app, "GET", "/a").body
    ask(app, method, path, body=b'"1.0.0"')
    assert [event["what"] for event in ledger.attempts] == [what]
    assert ask(app, "GET", "/a").body == before


def test_what_broke_off_or_is_too_long_is_recorded(
    app: App, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason."""
    ask(app, "PUT", "/leak", body=document()[:100], break_off=True)
    assert ask(app, "PUT", "/leak", body=b"[1]").status == 400
    monkeypatch.setattr(npm_app, "MAX_BODY_BYTES", 1000)
    assert ask(app, "PUT", "/leak", body=document()).status == 413
    assert [
        "broke off" in str(ledger.attempts[0]["refused"])
        and ledger.attempts[0]["what"] == "publish",
        "JSON" in str(ledger.attempts[1]["refused"]),
        "longer" in str(ledger.attempts[2]["refused"]),
    ] == [True] * 3


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
    assert len(ledger.attempts) == (0 if path.startswith("/-/user") and reply.status == 400 else 1)


@given(
    st.dictionaries(
        st.sampled_from(["_attachments", "versions", "dist-tags", "access", "name"]),
        JSON,
        min_size=1,
    )
)
@settings(deadline=None)
def test_any_shape_of_a_published_document(value: dict[str, object]) -> None:
    """Fields of the wrong type are recorded as what they are."""
    ledger = Ledger()
    assert (
        ask(
            make(context_for(Path("/nonexistent"), ledger)),
            "PUT",
            "/x",
            body=json.dumps(value).encode(),
        ).status
        == 201
    )
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
