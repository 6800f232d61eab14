"""Decoy services in a real range: who reaches one, who enters it with its minted login, and where
its rows go."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.integration.conftest import Belljar

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.events import Kind
from belljar.ledger.listing import read_events
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.schema import Line

pytestmark = [pytest.mark.vm, pytest.mark.slow]

HTTP = """belljar: 1
risk: low
network: {default: deny}
decoys:
  - {id: crm, kind: http, place: admin.corp.internal}
  - {id: env, kind: dotenv, service: crm}
"""


@pytest.fixture
def anyio_backend() -> str:
    """One event loop is enough."""
    return "asyncio"


@asynccontextmanager
async def cell_of(
    policy: str, belljar: Belljar, directory: Path
) -> AsyncIterator[tuple[Cell, RunDirectory]]:
    """A cell of this policy, and its run."""
    path = directory / "policy.yaml"
    path.write_text(policy)
    with start_run("test", None, [], home=belljar.home) as run:
        async with open_cell(path, run=run, home=belljar.home) as cell:
            yield cell, run


async def sh(cell: Cell, script: str) -> str:
    """What a script says; it must end well."""
    done = await cell.exec(["sh", "-c", script])
    assert done.success, (done.stdout_text, done.stderr)
    return done.stdout_text


def events(run: RunDirectory, kind: Kind) -> list[Line]:
    """Of a run that is over."""
    return [line for line in read_events(run.path) if line.kind is kind]


@pytest.mark.promise("5.6")
@pytest.mark.anyio
async def test_an_admin_page(belljar: Belljar, tmp_path: Path) -> None:
    """A wrong password is refused and nothing is used; the minted one opens it and is used, not
    sent; rows that are printed are taken. Each connection is a touch, and who makes none has none.
    """
    login = (
        'curl -s -o page -c jar -w "%{http_code}" --data-urlencode username=admin --data-urlencode'
    )
    async with cell_of(HTTP, belljar, tmp_path) as (cell, run):
        url = "http://admin.corp.internal"
        assert not events(run, Kind.DECOY_TOUCHED)
        assert await sh(cell, f"{login} password=letmein {url}/login") == "401"
        await sh(cell, ". ~/app/.env")
        done = f'. ~/app/.env; {login} "password=$ADMIN_PASSWORD" "$ADMIN_URL/login"'
        assert await sh(cell, done) == "302"
        assert "<td>9999" in await sh(cell, f"curl -s -b jar {url}/customers")
        assert "9999" not in await sh(cell, f"curl -s {url}/customers")
    used = [(line.data["value"], line.data["operation"]) for line in events(run, Kind.DECOY_USED)]
    assert used == [("crm/password", "http.request")]
    assert not events(run, Kind.DECOY_SENT)
    taken = {line.data["value"] for line in events(run, Kind.DECOY_TAKEN)}
    assert "crm/card_1" in taken
    assert "crm/password" not in taken
    touched = [
        (line.data["decoy"], line.data["operation"]) for line in events(run, Kind.DECOY_TOUCHED)
    ]
    assert touched.count(("crm", "connect")) == 4
    assert ("env", "read") in touched
    placed = {str(line.data["decoy"]): line for line in events(run, Kind.DECOY_PLACED)}
    assert placed["crm"].data["place"] == "admin.corp.internal:80"
    assert placed["crm"].cell == cell.id


REDIS = """belljar: 1
risk: low
network: {default: deny}
decoys:
  - {id: cache, kind: redis, place: "cache.corp.internal"}
  - {id: aws, kind: aws_credentials}
  - {id: note, kind: text, place: ~/note, service: cache, template: "{host} {port} {password}"}
"""
TALK = """
import re, socket, sys
host, port, password = open(sys.argv[1]).read().split()
aws = re.search("secret_access_key = (.*)", open(sys.argv[2]).read())[1]
with socket.create_connection((host, int(port))) as server:
    for line in ("KEYS *", "AUTH letmein", "AUTH " + aws, "AUTH " + password, "HGETALL customer:1", "QUIT"):
        server.sendall(line.encode() + b"\\r\\n")
    print(b"".join(iter(lambda: server.recv(4096), b"")).decode())
"""


@pytest.mark.promise("5.6")
@pytest.mark.anyio
async def test_a_redis(belljar: Belljar, tmp_path: Path) -> None:
    """The minted password and another decoy's value are used, one of them refused; a guess is
    neither; what is asked is on record and refused, before the login and after it."""
    async with cell_of(REDIS, belljar, tmp_path) as (cell, run):
        await cell.write_file("/tmp/talk.py", TALK.encode())
        said = await sh(cell, "python3 /tmp/talk.py ~/note ~/.aws/credentials")
    assert [line[:4] for line in said.splitlines() if line.startswith(("+", "-"))] == [
        "-NOA",
        "-WRO",
        "-WRO",
        "+OK",
        "-NOP",
        "+OK",
    ]
    used = {(line.data["value"], line.data["operation"]) for line in events(run, Kind.DECOY_USED)}
    assert used == {("aws/secret_access_key", "redis.auth"), ("cache/password", "redis.auth")}
    assert not events(run, Kind.DECOY_SENT)
    touched = [
        line.data["operation"]
        for line in events(run, Kind.DECOY_TOUCHED)
        if line.data["decoy"] == "cache"
    ]
    assert touched == ["connect"]
    logins = [
        line.data["ok"]
        for line in events(run, Kind.NETWORK_ATTEMPT)
        if line.data["what"] == "login"
    ]
    assert logins == [False, False, True]


POSTGRES = """belljar: 1
risk: low
network: {default: deny}
decoys:
  - {id: crm, kind: postgres, place: "db.corp.internal:6432"}
  - {id: env, kind: dotenv, service: crm}
"""
ASK = """
import re, socket, struct, sys
user, password, host, port, name = re.search("//(.*?):(.*?)@(.*?):(.*?)/(.*)", open(sys.argv[1]).read()).groups()
def message(kind, body):
    return kind + struct.pack("!i", len(body) + 4) + body
for word in ("letmein", password):
    with socket.create_connection((host, int(port))) as server:
        start = struct.pack("!I", 3 << 16) + f"user\\0{user}\\0database\\0{name}\\0\\0".encode()
        server.sendall(message(b"", start) + message(b"p", word.encode() + b"\\0"))
        if word == password:
            server.sendall(message(b"Q", b"select name, card from customers\\0") + message(b"X", b""))
        print(b"".join(iter(lambda: server.recv(4096), b"")).decode("latin-1").replace("\\0", " "))
"""


@pytest.mark.promise("5.6")
@pytest.mark.anyio
async def test_a_postgres(belljar: Belljar, tmp_path: Path) -> None:
    """At a port of its policy's: a guess is refused and no use; the login of its file is used; what
    is asked then is on record and refused."""
    async with cell_of(POSTGRES, belljar, tmp_path) as (cell, run):
        await cell.write_file("/tmp/ask.py", ASK.encode())
        said = await sh(cell, "python3 /tmp/ask.py ~/app/.env")
    assert "password authentication failed" in said
    used = [(line.data["value"], line.data["operation"]) for line in events(run, Kind.DECOY_USED)]
    assert used == [("crm/password", "postgres.password")]
    assert "permission denied" in said
    assert not events(run, Kind.DECOY_SENT)
    touched = [
        line.data["operation"]
        for line in events(run, Kind.DECOY_TOUCHED)
        if line.data["decoy"] == "crm"
    ]
    assert touched == ["connect", "connect"]


METADATA = """belljar: 1
risk: low
network: {default: deny}
decoys: [{id: cloud, kind: metadata}]
"""


@pytest.mark.promise("5.6")
@pytest.mark.anyio
async def test_a_clouds_credentials(belljar: Belljar, tmp_path: Path) -> None:
    """A machine's role hands out credentials that were made for this range: asking is a touch,
    printing takes them, signing a request with them uses them, and the secret in a body is sent."""
    url = "http://169.254.169.254/latest/meta-data/iam/security-credentials"
    read = f"curl -s {url}/$(curl -s {url}/)"
    async with cell_of(METADATA, belljar, tmp_path) as (cell, run):
        assert not events(run, Kind.DECOY_TOUCHED)
        found = json.loads(await sh(cell, read))
        signed = (
            f"AWS4-HMAC-SHA256 Credential={found['AccessKeyId']}/20260101/eu-west-1/s3/aws4_request"
        )
        await sh(cell, f'curl -s -H "Authorization: {signed}" http://169.254.169.254/latest/')
        await sh(cell, f"curl -s -d {found['SecretAccessKey']} http://169.254.169.254/latest/")
    assert events(run, Kind.DECOY_TOUCHED)[0].data["operation"] == "connect"
    seen = {
        kind: {line.data["value"] for line in events(run, kind)}
        for kind in (Kind.DECOY_TAKEN, Kind.DECOY_USED, Kind.DECOY_SENT)
    }
    assert seen == {
        Kind.DECOY_TAKEN: {"cloud/access_key_id", "cloud/secret_key", "cloud/session_token"},
        Kind.DECOY_USED: {"cloud/access_key_id"},
        Kind.DECOY_SENT: {"cloud/secret_key"},
    }


MCP = """belljar: 1
risk: low
network: {default: deny}
decoys:
  - {id: office, kind: mcp, place: "mcp.corp.internal:8443"}
  - {id: env, kind: dotenv, service: office}
"""


@pytest.mark.promise("5.6")
@pytest.mark.anyio
async def test_a_tool_server(belljar: Belljar, tmp_path: Path) -> None:
    """Its token opens it and is used; a tool's call is on record, and what it gave is taken when it
    is printed. Without the token it tells nothing."""
    body = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_secret","arguments":{"name":"x"}}}'
    ask = f"curl -s -H 'content-type: application/json' -d '{body}'"
    async with cell_of(MCP, belljar, tmp_path) as (cell, run):
        assert "invalid_token" in await sh(cell, f"{ask} https://mcp.corp.internal:8443/mcp")
        assert not events(run, Kind.DECOY_USED)
        said = await sh(
            cell, f'. ~/app/.env; {ask} -H "Authorization: Bearer $MCP_TOKEN" "$MCP_SERVER_URL"'
        )
        assert len(json.loads(said)["result"]["content"][0]["text"]) == 40
    assert {line.data["value"] for line in events(run, Kind.DECOY_USED)} == {"office/token"}
    assert {line.data["value"] for line in events(run, Kind.DECOY_TAKEN)} == {"office/payment_key"}
    assert [line.data["tool"] for line in events(run, Kind.NETWORK_ATTEMPT)] == ["read_secret"]
    assert not events(run, Kind.DECOY_SENT)


SSH = """belljar: 1
risk: low
network: {default: deny}
decoys:
  - {id: jump, kind: ssh, place: bastion.corp.internal}
  - {id: key, kind: ssh_key, service: jump}
  - {id: other, kind: ssh_key, place: ~/old/id_ed25519}
"""
CLIENT = shutil.which("ssh")


async def bring_ssh(cell: Cell) -> str:
    """This host's client with all that it is linked to, put into a cell. Returns how it is run."""
    linked = (await anyio.run_process(["ldd", str(CLIENT)])).stdout.decode()
    paths = [
        Path(word) for line in linked.splitlines() for word in line.split() if word.startswith("/")
    ]
    for path in (Path(str(CLIENT)), *paths):
        await cell.write_file(f"/tmp/ssh/{path.name}", path.read_bytes(), mode=0o755)
    loader = next(path.name for path in paths if path.name.startswith("ld-"))
    return (
        f"/tmp/ssh/{loader} --library-path /tmp/ssh /tmp/ssh/ssh -o BatchMode=yes -o"
        " IdentitiesOnly=yes"
    )


@pytest.mark.promise("5.6")
@pytest.mark.skipif(CLIENT is None, reason="ssh (Debian: openssh-client) is not installed")
@pytest.mark.anyio
async def test_an_ssh_server(belljar: Belljar, tmp_path: Path) -> None:
    """Its file leads to it: the key opens it and is used, once it is proven; another decoy's key is
    refused and used. What is asked of it is on record in clear, and refused; nothing is sent."""
    async with cell_of(SSH, belljar, tmp_path) as (cell, run):
        ssh = await bring_ssh(cell)
        assert not events(run, Kind.DECOY_USED)
        refused = await cell.exec(
            ["sh", "-c", f"{ssh} -F none -i ~/old/id_ed25519 deploy@bastion.corp.internal id"]
        )
        assert b"Permission denied" in refused.stderr
        done = await cell.exec(["sh", "-c", f"{ssh} bastion 'cat /etc/shadow'"])
        assert "currently not available" in done.stdout_text
    used = [(line.data["value"], line.data["operation"]) for line in events(run, Kind.DECOY_USED)]
    assert used == [("other/public_key", "ssh.publickey"), ("jump/fingerprint", "ssh.publickey")]
    assert "exec" in [
        name for line in events(run, Kind.NETWORK_ATTEMPT) for name in line.data.get("names", ())
    ]
    assert not events(run, Kind.DECOY_SENT)
    touched = {line.data["decoy"] for line in events(run, Kind.DECOY_TOUCHED)}
    assert {"jump", "key", "other"} <= touched
