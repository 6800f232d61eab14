"""Credentials in a cloud's shape."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.signals.credentials import KEY_BYTES, RandomStream, make_credentials


@pytest.mark.promise("5.6")
@given(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), st.text(max_size=20))
def test_whatever_the_randomness_they_have_awss_shape(key: bytes, label: str) -> None:
    """What a client checks before it uses them."""
    made = make_credentials(RandomStream(key, label).take)
    assert re.fullmatch(r"ASIA[A-Z2-7]{16}", made["access_key_id"])
    assert re.fullmatch(r"[A-Za-z0-9+/]{40}", made["secret_key"])
    assert len(made["session_token"]) > 300
