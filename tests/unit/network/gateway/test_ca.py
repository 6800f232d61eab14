"""The authority of a range."""

from __future__ import annotations

import datetime as dt
import ssl
import subprocess
import sys
from pathlib import Path
from unittest.mock import ANY

import pytest

from belljar.network.gateway.tls import Authority

NOW = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)


def shaken(
    authority: Authority, server: ssl.SSLContext, name: str, suite_1_2: str = ""
) -> ssl.SSLObject:
    """A client that trusts the authority alone, after a handshake with `server`."""
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    if suite_1_2:
        trusting.maximum_version = ssl.TLSVersion.TLSv1_2
        trusting.set_ciphers(suite_1_2)
    return handshake(trusting, server, name)


def handshake(trusting: ssl.SSLContext, server: ssl.SSLContext, name: str) -> ssl.SSLObject:
    a_in, a_out, b_in, b_out = (ssl.MemoryBIO() for _ in range(4))
    client = trusting.wrap_bio(a_in, a_out, server_hostname=name)
    serving = server.wrap_bio(b_in, b_out, server_side=True)
    done = 0
    while done < 2:
        done = 0
        for engine, sent, received in ((client, a_out, b_in), (serving, b_out, a_in)):
            try:
                engine.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
            received.write(sent.read())
    return client


@pytest.mark.promise("5.4")
def test_no_suite_that_pads_is_taken(tmp_path: Path) -> None:
    """In TLS 1.2 a record is as long as its plaintext and a constant: padding would hide bytes."""
    authority = Authority(tmp_path, dt.datetime.now(dt.UTC), 4)
    server = authority.context("shop.example")
    for end in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305"):
        suite = f"ECDHE-ECDSA-{end}"
        assert shaken(authority, server, "shop.example", suite).cipher() == (suite, "TLSv1.2", ANY)
    for end in ("AES128-SHA256", "AES256-SHA", "AES128-CCM", "AES128-CCM8"):
        with pytest.raises(ssl.SSLError, match="NO_SHARED_CIPHER"):
            shaken(authority, server, "shop.example", f"ECDHE-ECDSA-{end}")


_FORKS = """
import os
from pathlib import Path
from belljar.network.gateway import tls

tls.warm_up()
for _ in range(3):
    child = os.fork()
    if child == 0:
        own = tls.Authority(Path("/"), tls.dt.datetime(2026, 5, 1), 1).certificate
        os.write(1, tls.x509.load_pem_x509_certificate(own).public_key().public_bytes(
            tls.serialization.Encoding.X962, tls.serialization.PublicFormat.CompressedPoint).hex().encode() + b"\\n")
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_forks_of_a_warmed_up_process_draw_keys_of_their_own() -> None:
    """What OpenSSL drew before a fork is in each fork's memory: it may not be in their keys."""
    drawn = subprocess.run(
        [sys.executable, "-c", _FORKS], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()
    assert len(drawn) == len(set(drawn)) == 3


@pytest.mark.promise("2.5")
def test_no_key_stays_on_disk(tmp_path: Path) -> None:
    """The file that OpenSSL reads is gone when it has read it; secrets are, once they are taken."""
    authority = Authority(tmp_path, NOW, 4)
    context = authority.context("shop.example")
    assert [path.name for path in tmp_path.iterdir()] == ["secrets"]
    shaken(authority, context, "shop.example")
    assert b"CLIENT_TRAFFIC_SECRET_0 " in authority.take_secrets()
    assert ((tmp_path / "secrets").read_bytes(), authority.take_secrets()) == (b"", b"")
