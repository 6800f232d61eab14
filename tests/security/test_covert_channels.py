"""Two ranges of one policy and one run, at the same time: nothing that is done in one can be seen
in the other, and their gateways share nothing.

What is asked in one cell is compared with what the other one gets before and after, byte for byte,
and the host looks at both gateways' processes and at the record. Out of scope, and said so in
docs/egress.md: how long things take on a machine that both use.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from tests.security.conftest import policy_of
from tests.security.covert_world import Pair, Side, opened_side

from belljar.cell.parts import start_run

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.vm]

POLICY: Final = """\
belljar: 1
risk: low
tier: {tier}
user: root
network:
  stand_ins:
    board:
      kind: http
      names: [board.example, "*.board.example"]
      ports: [80, 443/tls]
      routes:
        - {{path: /me, body: "user {{{{ cookie.user }}}}"}}
        - {{path: /random, body: "{{{{ random.hex(32) }}}}"}}
    cloud: {{kind: metadata}}
"""


@pytest.fixture(
    scope="module",
    params=[
        "container",
        *(pytest.param(tier, marks=pytest.mark.thorough) for tier in ("gvisor", "microvm")),
    ],
)
async def pair(
    request: pytest.FixtureRequest, anyio_backend: str, vm_home: Path
) -> AsyncIterator[Pair]:
    policy = policy_of(POLICY.format(tier=request.param))
    async with AsyncExitStack() as stack:
        run = stack.enter_context(start_run("covert", "pair", [], home=vm_home))
        one, other = [
            await stack.enter_async_context(opened_side(policy, run, vm_home)) for _ in range(2)
        ]
        yield Pair(one, other, run)


@pytest.mark.promise("3.3")
async def test_names_that_one_asks_for_change_nothing_for_the_other(pair: Pair) -> None:
    """The same answers, byte for byte, after the other one asked a hundred times."""
    board = "board.example"
    names = (board, f"x.{board}", "secret.test", f"{board}.test", board)
    before = await pair.other.dns(*names)
    assert len({*before}) == 4
    await pair.one.dns(*(names * 20), *(f"bit{number}.secret.test" for number in range(50)))
    assert await pair.other.dns(*names) == before
    asked = [event for event in pair.events(pair.other) if event["kind"] == "network.dns"]
    assert {event["data"]["name"] for event in asked} == {*names}


@pytest.mark.promise("3.3")
async def test_certificates_of_one_are_worth_nothing_in_the_other(pair: Pair) -> None:
    """Two authorities of two keys; a client that trusts one refuses the other's leaf."""
    certificates = [
        x509.load_pem_x509_certificate(side.network.certificate) for side in (pair.one, pair.other)
    ]
    keys = [certificate.public_key() for certificate in certificates]
    assert keys[0] != keys[1]
    assert certificates[0].serial_number != certificates[1].serial_number
    for key, certificate in ((keys[0], certificates[1]), (keys[1], certificates[0])):
        assert isinstance(key, ec.EllipticCurvePublicKey)
        with pytest.raises(InvalidSignature):
            key.verify(
                certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(hashes.SHA256())
            )
    await pair.other.cell.write_file("/theirs.pem", pair.one.network.certificate)
    resolved = f"board.example:443:{pair.other.address()}"
    trusting = ["curl", "-sS", "--resolve", resolved, "https://board.example/me"]
    assert (await pair.other.cell.exec(trusting)).stdout == b"user "
    refused = await pair.other.cell.exec([*trusting, "--cacert", "/theirs.pem"])
    assert refused.returncode == 60


async def test_a_session_of_tls_from_one_is_unknown_to_the_other(pair: Pair) -> None:
    """No tickets are given (TLS 1.3); a session of TLS 1.2, carried over by hand, is begun anew."""
    script = (
        "sleep 1 | openssl s_client {version} -connect {address}:443 -servername board.example"
        " {session} 2>&1 | grep -aE '^(New|Reused),'; ls /kept 2>&1"
    )

    async def shake(side: Side, version: str, session: str) -> str:
        words = script.format(version=version, address=side.address(), session=session)
        return (await side.cell.exec(["sh", "-c", words])).stdout.decode()

    assert "No such file" in await shake(pair.one, "-tls1_3", "-sess_out /kept")
    assert (await shake(pair.one, "-tls1_2", "-sess_out /kept")).startswith("New, TLSv1.2")
    session = await pair.one.cell.read_file("/kept", max_bytes=1 << 16)
    await pair.other.cell.write_file("/kept", session)
    assert (await shake(pair.other, "-tls1_2", "-sess_in /kept")).startswith("New, TLSv1.2")


def test_gateways_have_nothing_together(pair: Pair) -> None:
    """By the host's own look at both processes."""
    gateways = [pair.one.gateway, pair.other.gateway]
    for name in ("net", "mnt", "ipc", "uts"):
        places = [Path(f"/proc/{pid}/ns/{name}") for pid in (*gateways, os.getpid())]
        assert len({place.stat().st_ino for place in places}) == 3
    same = re.compile(r"^Uid:\s+(\d+)\s+\1\s+\1\s+\1$", re.M)
    uids = [same.search(Path(f"/proc/{pid}/status").read_text()) for pid in gateways]
    found = {uid[1] for uid in uids if uid is not None}
    assert len(found) == 2
    assert "0" not in found
    held = [_descriptors(pid) for pid in gateways]
    assert all(held)
    assert held[0] & held[1] == set()
    assert _writable_together(gateways[0]) & _writable_together(gateways[1]) == set()
    for pid in gateways:
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        mounts = [line.split() for line in lines]
        assert {fields[4] for fields in mounts if "rw" in fields[5].split(",")} <= {"/t"}
    mine, theirs = (Path(f"/proc/{pid}/root/t/note") for pid in gateways)
    assert theirs.parent.is_dir()
    mine.write_text("hello")
    try:
        assert not theirs.exists()
    finally:
        mine.unlink()


def _descriptors(pid: int) -> set[tuple[int, int]]:
    """Device and inode of what it holds open, but the null device and anonymous ones."""
    null = Path(os.devnull).stat()
    links = Path(f"/proc/{pid}/fd").iterdir()
    files = [link.stat() for link in links if not str(link.readlink()).startswith("anon_inode:")]
    return {(file.st_dev, file.st_ino) for file in files} - {(null.st_dev, null.st_ino)}


def _writable_together(pid: int) -> set[str]:
    """Inodes of the memory that it can write and share."""
    fields = (line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return {f"{at[3]} {at[4]}" for at in fields if at[1][:2] == "rw" and at[1].endswith("s")}
