"""The identity that a `metadata` stand-in has."""

from __future__ import annotations

import ipaddress
import re
import uuid

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.asgi import NOW, context

from belljar.network.stand_ins.metadata import make_identity


@given(seed=st.binary(max_size=16))
def test_every_identity_has_the_clouds_shape(seed: bytes) -> None:
    """Whatever the randomness, account, instance, address, keys and times have the form that a
    client checks."""
    made = context(seed=seed)
    it = make_identity("", made.random, made.clock)
    assert re.fullmatch(r"[1-9]\d{11}", it.account)
    assert re.fullmatch(r"i-0[0-9a-f]{16}", it.instance)
    assert ipaddress.ip_address(it.address).is_private
    assert re.fullmatch(r"ASIA[A-Z2-7]{16}", it.access_key_id)
    assert it.started_s < NOW
    assert uuid.UUID(it.uuid).version == 4
    assert it.zone.startswith(it.region)
