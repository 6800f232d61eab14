"""The npm registry: names, files, and what clients want to change besides publishing."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.registries import Ledger, ask, context_for, make_tar

from belljar.network.stand_ins.registries import Npm

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=9,
)


def test_other_changes_are_recorded_and_change_nothing(tmp_path: Path) -> None:
    """Unpublishing, moving a tag, logging out, what this registry doesn't know."""
    manifest = json.dumps({"name": "left", "version": "1.0.0"}).encode()
    make_tar(tmp_path / "left.tgz", {"package/package.json": manifest})
    ledger = Ledger()
    app = Npm(context_for(tmp_path, ledger))
    assert ask(app, "POST", "/-/npm/v1/security/advisories/bulk", body=b"{}").status == 404
    assert ask(app, "POST", "/-/npm/v1/security/audits/quick", body=b"{}").status == 404
    assert (ask(app, "GET", "/-/ping").json, ledger.attempts) == ({}, [])
    before = ask(app, "GET", "/left").body
    login = json.dumps({"name": "eve", "password": "hunter2"}).encode()
    changes = [
        ("DELETE", "/left/-rev/1-x"),
        ("PUT", "/left/-rev/1-x"),
        ("PUT", "/-/package/a/dist-tags/latest"),
        ("DELETE", "/-/user/token/npm_x"),
        ("PATCH", "/anything/at/all"),
        ("PUT", "/-/user/org.couchdb.user:eve"),
    ]
    for method, path in changes:
        ask(app, method, path, body=login)
    assert [event["what"] for event in ledger.attempts] == ["change"] * len(changes)
    assert "hunter2" not in str(ledger.attempts[-1]) + str(ledger.bodies[-1])
    assert ask(app, "GET", "/left").body == before


@given(
    st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(["/x", "/-/user/org.couchdb.user:x", "/x/-rev/1", "/-/v1/login"]),
)
@settings(deadline=None)
def test_any_document_is_answered_and_recorded(body: bytes, path: str) -> None:
    """No document of a guest's is an error of ours."""
    ledger = Ledger()
    reply = ask(Npm(context_for(Path("/nonexistent"), ledger)), "PUT", path, body=body)
    assert reply.status in {200, 201, 400, 404}
    assert len(ledger.attempts) == 1
