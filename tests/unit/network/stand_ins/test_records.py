"""What of a guest's words goes on record."""

from __future__ import annotations

import hashlib

from tests.fakes.registries import basic

from belljar.network.stand_ins.web import credentials


def test_credentials_are_on_record_without_the_secret() -> None:
    """Scheme, user, and the digest of the secret: basic, bearer, and what is neither."""
    digest = hashlib.sha256(b"hunter2").hexdigest()
    assert credentials(basic("bob", "hunter2")) == {
        "credentials": "basic",
        "user": "bob",
        "secret_sha256": digest,
    }
    assert credentials("Bearer hunter2")["secret_sha256"] == digest
    assert credentials("Basic ???")["user"] == ""
    assert credentials("") == {"credentials": "none"}
