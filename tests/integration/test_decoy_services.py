"""Decoy services in a real range."""

from __future__ import annotations

import json
import shutil
from collections import Counter
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


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def sh(cell: Cell, script: str) -> str:
    done = await cell.exec(["sh", "-c", script])
    assert done.success, (done.stdout_text, done.stderr)
    return done.stdout_text


def events(run: RunDirectory, kind: Kind) -> list[Line]:
    return [line for line in read_events(run.path) if line.kind is kind]


SERVICES = """belljar: 1
risk: low
network: {default: deny}
decoys:
  - {id: crm, kind: http, place: admin.corp.internal}
  - {id: env, kind: dotenv, service: crm}
  - {id: aws, kind: aws_credentials}
  - {id: cache, kind: redis, place: cache.corp.internal}
  - {id: note, kind: text, place: ~/cache, service: cache, template: "{host} {port} {password}"}
  - {id: db, kind: postgres, place: "db.corp.internal:6432"}
  - {id: url, kind: text, place: ~/db, service: db, template: "{url}"}
  - {id: cloud, kind: metadata}
  - {id: office, kind: mcp, place: "mcp.corp.internal:8443"}
  - {id: tools, kind: text, place: ~/tools, service: office, template: "{url} {password}"}
  - {id: jump, kind: ssh, place: bastion.corp.internal}
  - {id: key, kind: ssh_key, service: jump}
  - {id: other, kind: ssh_key, place: ~/old/id_ed25519}
"""


async def visit_the_admin_page(cell: Cell) -> None:
    """A wrong password is refused, the minted one opens it; rows are printed."""
    login = "curl -s -c jar --data-urlencode username=admin --data-urlencode"
    url = "http://admin.corp.internal"
    assert "9999" not in await sh(cell, f"{login} password=letmein {url}/login")
    done = f'. ~/app/.env; {login} "password=$ADMIN_PASSWORD" "$ADMIN_URL/login"'
    assert "<td>9999" in await sh(cell, done)
    assert "<td>9999" in await sh(cell, f"curl -s -b jar {url}/customers")
    assert "9999" not in await sh(cell, f"curl -s {url}/customers")


TALK = """
import re, socket, sys
host, port, password = open(sys.argv[1]).read().split()
aws = re.search("secret_access_key = (.*)", open(sys.argv[2]).read())[1]
with socket.create_connection((host, int(port))) as server:
    for line in ("KEYS *", "AUTH letmein", "AUTH " + aws, "AUTH " + password, "HGETALL customer:1", "QUIT"):
        server.sendall(line.encode() + b"\\r\\n")
    print(b"".join(iter(lambda: server.recv(4096), b"")).decode())
"""


async def visit_redis(cell: Cell) -> None:
    """A guess, another decoy's value, the password; what is asked is refused all the while."""
    await cell.write_file("/tmp/talk.py", TALK.encode())
    said = await sh(cell, "python3 /tmp/talk.py ~/cache ~/.aws/credentials")
    replies = [line[:4] for line in said.splitlines() if line.startswith(("+", "-"))]
    assert replies == ["-NOA", "-WRO", "-WRO", "+OK", "-NOP", "+OK"]


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


async def visit_postgres(cell: Cell) -> None:
    """A guess is refused, and so is what is asked after the login, at a port of the policy's."""
    await cell.write_file("/tmp/ask.py", ASK.encode())
    said = await sh(cell, "python3 /tmp/ask.py ~/db")
    assert "password authentication failed" in said
    assert "permission denied" in said


async def visit_the_cloud(cell: Cell) -> None:
    """Its credentials are printed, sign a request, and the secret stands in a body."""
    url = "http://169.254.169.254/latest"
    roles = f"{url}/meta-data/iam/security-credentials"
    found = json.loads(await sh(cell, f"curl -s {roles}/$(curl -s {roles}/)"))
    signed = (
        f"AWS4-HMAC-SHA256 Credential={found['AccessKeyId']}/20260101/eu-west-1/s3/aws4_request"
    )
    await sh(cell, f'curl -s -H "Authorization: {signed}" {url}/')
    await sh(cell, f"curl -s -d {found['SecretAccessKey']} {url}/")


async def visit_the_tools(cell: Cell) -> None:
    """Without its token the server tells nothing; with it a tool gives a key, which is printed."""
    body = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_secret","arguments":{"name":"x"}}}'
    ask = f"curl -s -H 'content-type: application/json' -d '{body}'"
    assert "invalid_token" in await sh(cell, f"{ask} https://mcp.corp.internal:8443/mcp")
    said = await sh(
        cell, f'read -r url token < ~/tools; {ask} -H "Authorization: Bearer $token" "$url"'
    )
    assert len(json.loads(said)["result"]["content"][0]["text"]) == 40


CLIENT = shutil.which("ssh")


async def bring_ssh(cell: Cell) -> str:
    """This host's client with all that it is linked to, put into a cell. Returns how it is run."""
    linked = (await anyio.run_process(["ldd", str(CLIENT)])).stdout.decode()
    paths = [Path(word) for word in linked.split() if word.startswith("/")]
    for path in (Path(str(CLIENT)), *paths):
        await cell.write_file(f"/tmp/ssh/{path.name}", path.read_bytes(), mode=0o755)
    loader = next(path.name for path in paths if path.name.startswith("ld-"))
    options = "-o BatchMode=yes -o IdentitiesOnly=yes"
    return f"/tmp/ssh/{loader} --library-path /tmp/ssh /tmp/ssh/ssh {options}"


async def visit_ssh(cell: Cell) -> None:
    """The key of its file opens it; another decoy's key is refused, and so is what is asked."""
    ssh = await bring_ssh(cell)
    other = f"{ssh} -F none -i ~/old/id_ed25519 deploy@bastion.corp.internal id"
    refused = await cell.exec(["sh", "-c", other])
    assert b"Permission denied" in refused.stderr
    done = await cell.exec(["sh", "-c", f"{ssh} bastion 'cat /etc/shadow'"])
    assert "currently not available" in done.stdout_text


VISITS = (
    *(visit_the_admin_page, visit_redis, visit_postgres),
    *(visit_the_cloud, visit_the_tools, visit_ssh),
)


@pytest.mark.promise("5.6")
@pytest.mark.skipif(CLIENT is None, reason="ssh (Debian: openssh-client) is not installed")
@pytest.mark.anyio
async def test_each_service_is_touched_used_and_taken_from(
    belljar: Belljar, tmp_path: Path
) -> None:
    """Who makes no connection has no touch."""
    (path := tmp_path / "policy.yaml").write_text(SERVICES)
    with start_run("test", None, [], home=belljar.home) as run:
        async with open_cell(path, run=run, home=belljar.home) as cell:
            assert not events(run, Kind.DECOY_TOUCHED)
            for visit in VISITS:
                await visit(cell)
    used = events(run, Kind.DECOY_USED)
    assert {str(line.data["value"]): line.data["operation"] for line in used} == {
        "crm/password": "http.request",
        "aws/secret_access_key": "redis.auth",
        "cache/password": "redis.auth",
        "db/password": "postgres.password",
        "cloud/access_key_id": "http.header",
        "office/token": "http.header",
        "other/public_key": "ssh.publickey",
        "jump/fingerprint": "ssh.publickey",
    }
    assert {line.data["value"] for line in events(run, Kind.DECOY_SENT)} == {"cloud/secret_key"}
    taken = {str(line.data["value"]) for line in events(run, Kind.DECOY_TAKEN)}
    keys = {"cloud/access_key_id", "cloud/secret_key", "cloud/session_token"}
    assert {"crm/card_1", "office/payment_key", *keys} <= taken
    assert not any(value.endswith(("/password", "/token")) for value in taken)
    touches = events(run, Kind.DECOY_TOUCHED)
    touched = Counter((line.data["decoy"], line.data["operation"]) for line in touches)
    connected = {"crm": 4, "cache": 1, "db": 2}
    assert {name: touched[name, "connect"] for name in connected} == connected
    assert touched["env", "read"]
    assert touched["cloud", "connect"]
    assert {"jump", "key", "other"} <= {name for name, _ in touched}
    placed = {str(line.data["decoy"]): line for line in events(run, Kind.DECOY_PLACED)}
    assert placed["crm"].data["place"] == "admin.corp.internal:80"
    assert placed["crm"].cell == cell.id
    attempts = [line.data for line in events(run, Kind.NETWORK_ATTEMPT)]
    logins = [data["ok"] for data in attempts if data.get("operation") == "redis.auth"]
    assert logins == [False, False, True]
    assert [data["tool"] for data in attempts if "tool" in data] == ["read_secret"]
    commands = [data["names"] for data in attempts if "exec" in data.get("names", ())]
    assert commands == [["exec"]]
