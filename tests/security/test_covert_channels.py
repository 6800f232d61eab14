"""Two ranges of one policy and one run, at the same time: nothing that is done in one can be seen in the other, and their gateways share nothing.

What is asked in one cell is compared with what the other one gets before and after, byte for byte, and the host looks at both gateways' processes and at the record.
Out of scope, and said so in docs/egress.md: how long things take on a machine that both use.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from tests.fakes.registries import make_wheel

from belljar.cell import Cell
from belljar.cell.ranges import Range, open_range
from belljar.cell.runs import start_run
from belljar.ledger import RunDirectory
from belljar.network.range import Range as Network
from belljar.policy import LoadedPolicy, load_policy

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
      state: {{items: []}}
      routes:
        - {{path: /items, json: "{{{{ state.items }}}}"}}
        - {{path: /items, method: POST, do: {{append: {{state.items: "{{{{ body }}}}"}}}}, body: taken}}
        - {{path: /login, method: POST, do: {{set: {{session.user: "{{{{ body }}}}"}}}}, body: welcome}}
        - {{path: /me, body: "user {{{{ session.user }}}}"}}
        - {{path: /random, body: "{{{{ random.hex(32) }}}}"}}
    index:
      kind: pypi
      names: [index.example]
      ports: [80]
      packages: wheels
    cloud: {{kind: metadata}}
"""
CLIENT: Final = """
import json, socket, sys
def talk(kind, address, port, said, least=1):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    s.settimeout(20)
    data = b""
    try:
        s.connect((address, port))
        s.sendall(bytes.fromhex(said))
        while True:
            more = s.recv(65536)
            data += more
            if not more or kind == "udp":
                break
    except OSError as error:
        return data.hex() or type(error).__name__
    return data.hex()
print(json.dumps([talk(*asked) for asked in json.load(sys.stdin)]))
"""
HOLD: Final = """
import socket, sys
held = [socket.create_connection((sys.argv[1], 80), 20) for _ in range(400)]
for s in held:
    s.sendall(b"GET /me HTTP/1.1\\r\\nHost: board.example\\r\\n\\r\\n")
print("held", sum(1 for s in held if s.recv(100)), flush=True)
sys.stdin.read()
"""
FLOOD: Final = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setblocking(False)
for number in range(6000):
    try:
        s.sendto(bytes.fromhex(sys.argv[2]), (sys.argv[1], 53))
    except OSError:
        pass
"""


@dataclass(frozen=True)
class Side:
    """One of the two ranges."""

    opened: Range
    network: Network

    @property
    def cell(self) -> Cell:
        """Its cell."""
        return self.opened.cell

    @property
    def gateway(self) -> int:
        """The pid of its gateway."""
        return self.pids[1]

    @property
    def pids(self) -> tuple[int, int]:
        """Of its keeper and its gateway."""
        entry = self.network._entry
        assert entry is not None
        keeper, gateway = entry.processes
        return keeper.pid, gateway.pid

    def address(self, pattern: str = "board.example") -> str:
        """Where a name is in this range."""
        return next(name.address for name in self.network.layout.names if name.pattern == pattern)

    async def talk(self, *asked: tuple[str, str, int, bytes]) -> list[bytes]:
        """(udp or tcp, address, port, what is said): what came back of each, or the error's name."""
        told = json.dumps([(kind, address, port, said.hex()) for kind, address, port, said in asked]).encode()
        output = await self.cell.exec(["python3", "-I", "-c", CLIENT], input=told)
        assert output.success, output.stderr
        found: list[str] = json.loads(output.stdout)
        return [bytes.fromhex(text) if re.fullmatch("([0-9a-f]{2})*", text) else text.encode() for text in found]

    async def http(
        self, *requests: tuple[str, str, bytes], cookie: str = "", host: str = "board.example"
    ) -> list[bytes]:
        """(method, path, body) each: what came back, whole, without the time."""
        asked = [("tcp", self.address(host), 80, _request(*request, cookie=cookie, host=host)) for request in requests]
        return [re.sub(rb"(?i)date: [^\r]*\r\n", b"", said) for said in await self.talk(*asked)]

    async def dns(self, *names: str) -> list[bytes]:
        """The resolver's answers, with this range's own addresses left out."""
        said = await self.talk(*(("udp", self.network.layout.resolver, 53, _query(name)) for name in names))
        own = {bytes(int(part) for part in name.address.split(".")) for name in self.network.layout.names}
        for address in own:
            said = [answer.replace(address, b"ADDR") for answer in said]
        return said


def _request(method: str, path: str, body: bytes, *, cookie: str, host: str) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    return (head + (f"Cookie: {cookie}\r\n" if cookie else "") + "\r\n").encode() + body


def _query(name: str) -> bytes:
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    return b"\x2a\x2a\x01\x00\x00\x01\0\0\0\0\0\0" + labels + b"\0\0\x01\0\x01"


@dataclass(frozen=True)
class Pair:
    """Both, and the run that records them."""

    one: Side
    other: Side
    run: RunDirectory

    def events(self, side: Side) -> list[dict[str, Any]]:
        """What is on record of one range: the network's events."""
        lines = (json.loads(line) for line in (self.run.path / "ledger.jsonl").read_bytes().splitlines())
        return [
            line for line in lines if line["kind"].startswith("network.") and line["data"]["range"] == side.network.id
        ]


@pytest.fixture(
    scope="module",
    params=["container", *(pytest.param(tier, marks=pytest.mark.thorough) for tier in ("gvisor", "microvm"))],
)
async def pair(
    request: pytest.FixtureRequest, anyio_backend: str, vm_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    """Two ranges of one policy, in one run."""
    folder = tmp_path_factory.mktemp("covert")
    for path in (folder, folder / "wheels"):  # for gateways, who are nobody here
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    make_wheel(folder / "wheels", "lib", "1.0")
    (folder / "policy.yaml").write_text(POLICY.format(tier=request.param))
    policy = load_policy(folder / "policy.yaml")
    async with AsyncExitStack() as stack:
        run = stack.enter_context(start_run("covert", "pair", [], home=vm_home))
        one, other = [await stack.enter_async_context(_side(policy, run, vm_home)) for _ in range(2)]
        yield Pair(one, other, run)


@asynccontextmanager
async def _side(policy: LoadedPolicy, run: RunDirectory, home: Path) -> AsyncIterator[Side]:
    async with open_range(policy, run=run, home=home) as opened:
        assert opened.network is not None
        yield Side(opened, opened.network)


async def test_names_that_one_asks_for_change_nothing_for_the_other(pair: Pair) -> None:
    """Answers to the same questions are the same, byte for byte, before and after the other one asked them a hundred times: no cache, no age."""
    names = ("board.example", "x.board.example", "secret.test", "index.example", "board.example")
    before = await pair.other.dns(*names)
    assert len({*before}) == 4
    await pair.one.dns(*(names * 20), *(f"bit{number}.secret.test" for number in range(50)))
    assert await pair.other.dns(*names) == before
    assert {event["data"]["name"] for event in pair.events(pair.other) if event["kind"] == "network.dns"} == {*names}


async def test_a_stand_ins_state_is_one_ranges_alone(pair: Pair) -> None:
    """What is posted in one is there in that one, and in no other; a session's cookie of one is nobody's in the other."""
    await pair.one.http(("POST", "/items", b"hidden message"))
    (mine,), (theirs,) = await pair.one.http(("GET", "/items", b"")), await pair.other.http(("GET", "/items", b""))
    assert b"hidden message" in mine
    assert theirs.endswith(b"\r\n\r\n[]")
    (welcome,) = await pair.one.http(("POST", "/login", b"eve"))
    found = re.search(rb"(?i)set-cookie: ([^;\r]+)", welcome)
    assert found is not None
    cookie = found[1].decode()
    (mine,), (theirs,) = (
        await pair.one.http(("GET", "/me", b""), cookie=cookie),
        await pair.other.http(("GET", "/me", b""), cookie=cookie),
    )
    assert mine.endswith(b"user eve")
    assert theirs.endswith(b"user ")


async def test_what_is_published_in_one_is_not_in_the_others_index(pair: Pair) -> None:
    """The void that takes it is nobody's: the index is the same before and after, in both."""
    pages = (("GET", "/simple/", b""), ("GET", "/simple/lib/", b""), ("GET", "/simple/smuggled/", b""))
    before = await pair.other.http(*pages, host="index.example")
    fields = {":action": "file_upload", "name": "smuggled", "version": "6.6"}
    parts = "".join(
        f'--b\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n' for key, value in fields.items()
    )
    file = 'Content-Disposition: form-data; name="content"; filename="smuggled-6.6.tar.gz"\r\n\r\nmessage\r\n--b--\r\n'
    body = (parts + "--b\r\n" + file).encode()
    head = f"POST /legacy/ HTTP/1.1\r\nHost: index.example\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    (said,) = await pair.one.talk(("tcp", pair.one.address("index.example"), 80, head.encode() + body))
    assert said.startswith(b"HTTP/1.1 200")
    assert await pair.other.http(*pages, host="index.example") == before
    assert await pair.one.http(*pages, host="index.example") == before
    attempts = [event["data"]["name"] for event in pair.events(pair.one) if event["kind"] == "network.attempt"]
    assert "smuggled" in attempts
    assert not [
        event
        for event in pair.events(pair.other)
        if event["kind"] == "network.attempt" and event["data"]["what"] == "publish"
    ]


async def test_what_is_drawn_at_random_tells_nothing_of_the_other(pair: Pair) -> None:
    """A stand-in's random text and a cloud's credentials are each range's own, though the policy is the same."""
    drawn = [await side.http(("GET", "/random", b"")) for side in (pair.one, pair.other)]
    assert drawn[0] != drawn[1]
    path = (
        b"GET /latest/dynamic/instance-identity/document HTTP/1.1\r\nHost: 169.254.169.254\r\nConnection: close\r\n\r\n"
    )
    identities = [await side.talk(("tcp", "169.254.169.254", 80, path)) for side in (pair.one, pair.other)]
    bodies = [said.partition(b"\r\n\r\n")[2] for (said,) in identities]
    assert all(bodies)
    assert bodies[0] != bodies[1]


async def test_connections_that_one_holds_take_nothing_from_the_other(pair: Pair) -> None:
    """Four hundred kept alive in one, all its ports of that number in use: the other is answered as before, and the host sees no connection in it but its own."""
    before = await pair.other.http(("GET", "/me", b""))
    async with pair.one.cell.open_exec(["python3", "-I", "-c", HOLD, pair.one.address()]) as holding:
        assert (await anext(holding))[1] == b"held 400\n"
        assert await pair.other.http(("GET", "/me", b"")) == before
        held = [_count_open(side.gateway) for side in (pair.one, pair.other)]
    assert held[0] - held[1] >= 400


async def test_a_flood_in_one_uses_up_nothing_of_the_other(pair: Pair) -> None:
    """The rules' rates are a port's own: after thousands of queries in one, of which its rules refused some, the other has refused none and answers all."""
    await pair.one.cell.exec(
        ["python3", "-I", "-c", FLOOD, pair.one.network.layout.resolver, _query("flood.test").hex()]
    )
    answers = await pair.other.dns(*["board.example"] * 40)
    for side in (pair.one, pair.other):
        await side.network.check()
    assert len({*answers}) == 1
    assert pair.one.network.counters()["rate"] > 0
    assert pair.other.network.counters()["rate"] == 0


async def test_certificates_of_one_are_worth_nothing_in_the_other(pair: Pair) -> None:
    """Two authorities of two keys: neither has signed the other's, and a client that trusts one refuses the other's leaf."""
    certificates = [x509.load_pem_x509_certificate(side.network.certificate) for side in (pair.one, pair.other)]
    keys = [certificate.public_key() for certificate in certificates]
    assert keys[0] != keys[1]
    assert certificates[0].serial_number != certificates[1].serial_number
    for key, certificate in ((keys[0], certificates[1]), (keys[1], certificates[0])):
        assert isinstance(key, ec.EllipticCurvePublicKey)
        with pytest.raises(InvalidSignature):
            key.verify(certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(hashes.SHA256()))
    await pair.other.cell.write_file("/theirs.pem", pair.one.network.certificate)
    trusting = ["curl", "-sS", "--resolve", f"board.example:443:{pair.other.address()}", "https://board.example/me"]
    assert (await pair.other.cell.exec(trusting)).stdout == b"user "
    refused = await pair.other.cell.exec([*trusting, "--cacert", "/theirs.pem"])
    assert refused.returncode == 60


async def test_a_session_of_tls_from_one_is_unknown_to_the_other(pair: Pair) -> None:
    """No tickets are given (TLS 1.3); a session of TLS 1.2, carried over by hand, is begun anew."""
    script = (
        "sleep 1 | openssl s_client {version} -connect {address}:443 -servername board.example {session} 2>&1"
        " | grep -aE '^(New|Reused),'; ls /kept 2>&1"
    )

    async def shake(side: Side, version: str, session: str) -> str:
        words = script.format(version=version, address=side.address(), session=session)
        return (await side.cell.exec(["sh", "-c", words])).stdout.decode()

    assert "No such file" in await shake(pair.one, "-tls1_3", "-sess_out /kept")
    assert (await shake(pair.one, "-tls1_2", "-sess_out /kept")).startswith("New, TLSv1.2")
    session = await pair.one.cell.read_file("/kept", max_bytes=1 << 16)
    await pair.other.cell.write_file("/kept", session)
    assert (await shake(pair.other, "-tls1_2", "-sess_in /kept")).startswith("New, TLSv1.2")


def test_gateways_have_no_namespace_user_descriptor_or_memory_together(pair: Pair) -> None:
    """By the host's own look at both processes: other uids, other namespaces, no file, socket or pipe that both hold, no memory that both could write."""
    gateways = [side.gateway for side in (pair.one, pair.other)]
    for name in ("net", "mnt", "ipc", "uts"):
        assert len({Path(f"/proc/{pid}/ns/{name}").stat().st_ino for pid in (*gateways, os.getpid())}) == 3
    uids = [
        re.search(r"^Uid:\s+(\d+)\s+\1\s+\1\s+\1$", Path(f"/proc/{pid}/status").read_text(), re.M) for pid in gateways
    ]
    found = {uid[1] for uid in uids if uid is not None}
    assert len(found) == 2
    assert "0" not in found
    held = [_descriptors(pid) for pid in gateways]
    assert all(held)
    assert held[0] & held[1] == set()
    assert _writable_together(gateways[0]) & _writable_together(gateways[1]) == set()


def _count_open(pid: int) -> int:
    return len([*Path(f"/proc/{pid}/fd").iterdir()])


def _descriptors(pid: int) -> set[tuple[int, int]]:
    """Device and inode of all that it holds open, but for what has no state (the null device) or no inode of its own (an epoll, made after the fork)."""
    null = Path(os.devnull).stat()
    links = [link for link in Path(f"/proc/{pid}/fd").iterdir() if not str(link.readlink()).startswith("anon_inode:")]
    found = {(link.stat().st_dev, link.stat().st_ino) for link in links}
    return found - {(null.st_dev, null.st_ino)}


def _writable_together(pid: int) -> set[str]:
    """Inodes of the memory that it can write and share."""
    fields = (line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return {f"{place[3]} {place[4]}" for place in fields if place[1].startswith("rw") and place[1].endswith("s")}


def test_gateways_have_no_place_to_write_together(pair: Pair) -> None:
    """The only writable file system in a gateway's root is in its own memory: a file put into one's is not in the other's."""
    roots = [Path(f"/proc/{side.gateway}/root") for side in (pair.one, pair.other)]
    for root, side in zip(roots, (pair.one, pair.other), strict=True):
        mounts = [line.split() for line in Path(f"/proc/{side.gateway}/mountinfo").read_text().splitlines()]
        writable = {fields[4] for fields in mounts if "rw" in fields[5].split(",")}
        assert writable <= {"/t"}, writable
        assert (root / "t").is_dir()
    (roots[0] / "t" / "note").write_text("hello")
    try:
        assert not (roots[1] / "t" / "note").exists()
    finally:
        (roots[0] / "t" / "note").unlink()


def test_each_event_names_its_range_alone(pair: Pair) -> None:
    """Both ranges' events are in one record, and none is without its range; no address of one stands in an event of the other."""
    lines = [json.loads(line) for line in (pair.run.path / "ledger.jsonl").read_bytes().splitlines()]
    ids = {side.network.id for side in (pair.one, pair.other)}
    network = [line for line in lines if line["kind"].startswith("network.")]
    assert {line["data"]["range"] for line in network} == ids
    for side, beside in ((pair.one, pair.other), (pair.other, pair.one)):
        prefix = beside.network.layout.prefix.rpartition(".")[0].rpartition(".")[0] + "."
        assert prefix not in json.dumps([event["data"] for event in pair.events(side)])
