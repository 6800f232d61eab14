"""What of a guest's words goes on record."""

from __future__ import annotations

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st
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


@given(st.text(max_size=200))
@settings(deadline=None)
def test_no_secret_of_any_form_is_recorded(secret: str) -> None:
    """A bearer's secret of some length never stands in what is recorded."""
    marked = f"s3cr3t-{secret}-s3cr3t"
    assert "s3cr3t" not in str(credentials(f"Bearer {marked}"))
