"""The certificate authority of one range: made with the gateway, known to nobody else, gone with
it.

Its key is in this process's memory only. A leaf's key is written to `scratch` (a file system in
memory that only the gateway sees) for as long as OpenSSL takes to read it: Python's `ssl` reads
keys from files only.
"""

from __future__ import annotations

import datetime as dt
import ssl
from collections import OrderedDict
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_NAME: Final = "Internal Root CA"
"""Says neither whose it is nor what for."""
AUTHORITY_AGE: Final = dt.timedelta(days=400)
AUTHORITY_LIFE: Final = dt.timedelta(days=3650)
LEAF_AGE: Final = dt.timedelta(days=30)
LEAF_LIFE: Final = dt.timedelta(days=390)
"""Below the 398 days beyond which clients refuse a certificate."""
ALPN: Final = ("h2", "http/1.1")
_TLS_1_2_SUITES: Final = "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20"


class Authority:
    """Mints leaves by name. `certificate` is its own, PEM. Two have nothing in common.

    Args:
        scratch: a directory to write to.
        now: the time of its making, by which certificates are dated (back, so that a clock that is
            behind takes them too).
        max_leaves: how many are kept.
    """

    def __init__(self, scratch: Path, now: dt.datetime, max_leaves: int) -> None:
        self._scratch = scratch
        self._now = now
        self._max_leaves = max_leaves
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = (
            self._builder(
                _named(AUTHORITY_NAME), self._key.public_key(), AUTHORITY_AGE, AUTHORITY_LIFE
            )
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = self._certificate.public_bytes(serialization.Encoding.PEM)
        self._leaves: OrderedDict[tuple[str, bool], ssl.SSLContext] = OrderedDict()

    def context(self, name: str, *, http: bool) -> ssl.SSLContext:
        """A server's context with a certificate for exactly this name.

        `http`: HTTP/2 and HTTP/1.1 are offered.
        """
        found = self._leaves.pop((name, http), None) or self._made(name, http=http)
        self._leaves[name, http] = found
        if len(self._leaves) > self._max_leaves:
            self._leaves.popitem(last=False)
        return found

    def _made(self, name: str, *, http: bool) -> ssl.SSLContext:
        context = server_context(http=http)
        file = self._scratch / "leaf.pem"
        try:
            file.write_bytes(self._leaf_pem(name))
            context.load_cert_chain(file)
        finally:
            file.unlink(missing_ok=True)
        return context

    def _leaf_pem(self, name: str) -> bytes:
        leaf = (
            self._builder(_named(name), self._leaf_key.public_key(), LEAF_AGE, LEAF_LIFE)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        key = self._leaf_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return key + leaf.public_bytes(serialization.Encoding.PEM) + self.certificate

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        age: dt.timedelta,
        life: dt.timedelta,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(_named(AUTHORITY_NAME))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - age)
            .not_valid_after(self._now - age + life)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )


def warm_up() -> None:
    """What OpenSSL and `cryptography` set up at their first use, before a gateway is forked.

    The keys are thrown away.

    No two forks draw the same keys: OpenSSL seeds its generators anew when the process id is
    another (RAND(7), `ossl_rand_drbg`).
    """
    Authority(Path("/nonexistent"), dt.datetime.now(dt.UTC), 0)
    server_context(http=True)


def server_context(*, http: bool) -> ssl.SSLContext:
    """A server's context without a certificate: TLS 1.2 or 1.3, no renegotiation, no compression,
    no resumption (each connection says its name anew), and in TLS 1.2 no suite that pads: a
    record's length follows from its plaintext's (`tls_pipe`).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_TLS_1_2_SUITES)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    if http:
        context.set_alpn_protocols(list(ALPN))
    return context


def _named(name: str) -> x509.Name:
    # X.520 has 64 characters for a common name; the name itself stands in the SAN.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
