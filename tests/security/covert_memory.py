"""Everything of a range that remembers what a cell did: how to leave a word in it, and how to look
for it, by real clients in a cell."""

from __future__ import annotations

import json
import re
import struct
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
_REQUEST: Final = {"method": "GET", "url": "http://replay.example/turns"}
_TURNS: Final = (
    {"status": 200, "headers": [], "content": {"text": text, "mimeType": "text/plain"}}
    for text in ("first", WORD)
)
_LOG: Final = {
    "version": "1.2",
    "creator": {"name": "t", "version": "1"},
    "entries": [{"request": _REQUEST, "response": turn} for turn in _TURNS],
}
FILES: Final = {
    "files/replay.har": json.dumps({"log": _LOG}),
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
    *("wheels", "npm", "deb"),
    *(f"repositories/thing.git/{name}" for name in ("objects/info", "refs/heads")),
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
    described = {"package/package.json": b'{"name": "lib", "version": "1.0.0"}'}
    make_tar(folder / "npm/lib-1.0.0.tgz", described)
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
_CLOUD: Final = "http://169.254.169.254/latest"
_HEADER: Final = "X-aws-ec2-metadata-token"
_TOKEN: Final = f"{_GET} -X PUT -H '{_HEADER}-ttl-seconds: 600' {_CLOUD}/api/token"
_IDENTITY: Final = f'{_GET} -H "{_HEADER}: $({_TOKEN})" {_CLOUD}/dynamic/instance-identity/document'
_TURN: Final = f"{_GET} http://replay.example/turns"
_REPOSITORY: Final = "http://forge.example/thing.git"
_PUSH: Final = f"""
set -e; cd "$(mktemp -d)"; git init -q .; git config user.name x; git config user.email x@example.org
echo text > file; git add file; git commit -qm word; git push -q {_REPOSITORY} HEAD:refs/heads/{WORD}; git rev-parse HEAD
"""
_LEAF: Final = (
    f"openssl s_client -connect {WORD}.board.example:443 -servername {WORD}.board.example <"
    " /dev/null 2> /dev/null | openssl x509 -noout -fingerprint -sha256"
)
_FETCH: Final = f'cd "$(mktemp -d)"; git init -q .; git fetch -q {_REPOSITORY} {{key}}'
KEEPING: Final = (
    Memory("har, whose turn it is", _TURN, _TURN),
    *(
        Memory(name, f"{_GET} -d {WORD} {url}", f"{_GET} {url}")
        for name, url in (
            ("python, the app's memory", "http://app.example/"),
            ("cell, a target's memory", "http://db.example/"),
        )
    ),
    Memory("git, a pushed reference", _PUSH, f"git ls-remote {_REPOSITORY}"),
    Memory(
        "git, a pushed commit, by its id",
        _PUSH.replace(WORD, "another"),
        f"{_FETCH} && git cat-file -t {{key}}",
        "([0-9a-f]{40})",
        "commit",
    ),
    Memory(
        "metadata, a token",
        _TOKEN,
        f"{_GET} -i -H '{_HEADER}: {{key}}' {_CLOUD}/meta-data/instance-id",
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


_TALK: Final = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) as s:
    for piece in sys.argv[3:]:
        if piece == "hear":
            print(s.recv(999))
        elif piece == "a line":
            print(s.makefile("rb").readline())
        elif piece == "end":
            s.shutdown(socket.SHUT_WR)
        else:
            s.sendall(bytes.fromhex(piece))
"""


def _talk(host: str, port: int, *pieces: bytes | str) -> tuple[str, ...]:
    """Bytes are sent; what is heard, as words say."""
    words = (piece.hex() if isinstance(piece, bytes) else piece for piece in pieces)
    return ("python3", "-c", _TALK, host, str(port), *words)


def _mail(*lines: str) -> tuple[str, ...]:
    """A talk with the mail server."""
    pieces = [piece for line in lines for piece in ("hear", f"{line}\r\n".encode())]
    return _talk("mail.example", 25, *pieces, "hear")


def _postgres(user: str) -> tuple[str, ...]:
    """The first message."""
    said = b"\0\3\0\0user\0" + user.encode() + b"\0database\0crm\0\0"
    return _talk("postgres.example", 5432, struct.pack(">I", len(said) + 4) + said, "hear")


_JSON: Final = f"{_GET} -H 'Content-Type: application/json'"
_MODEL: Final = f"{_JSON} -H 'Authorization: Bearer x'"


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


_POST: Final = f"{_MODEL} -d"
_UPLOAD: Final = (
    f"{_GET} -F :action=file_upload -F name={WORD} -F version=1 -F"
    f" 'content=@/etc/hostname;filename={WORD}-1.tar.gz' http://index.example/legacy/"
)
_PACKAGE: Final = json.dumps(
    {"name": WORD, "versions": {"1": {}}, "_attachments": {"a": {"data": "AA"}}}
)
_CHAT: Final = json.dumps({"model": "m", "messages": [{"role": "user", "content": WORD}]})
_AND: Final = json.dumps({"model": "m", "input": "and?", "previous_response_id": "resp_1"})
_ENVELOPE: Final = ("HELO cell", "MAIL FROM:<a@board.example>", f"RCPT TO:<{WORD}@outside.test>")
_WHOIS: Final = ("HELO cell", f"VRFY {WORD}@outside.test", "EXPN all", "ETRN board.example", "QUIT")
_RESOLVE: Final = ("getent", "ahostsv4", f"{WORD}.board.example")
_APT: Final = f"http://apt.example/pool/{WORD}.deb"
_ELSEWHERE: Final = "http://elsewhere.test"
VOIDS: Final = (
    Void(
        "http, what was posted",
        shell(f"{_GET} -d {WORD} http://board.example/"),
        shell(f"{_GET} http://board.example/"),
        ("network.http", WORD),
    ),
    Void(
        "pypi, an upload",
        shell(_UPLOAD),
        shell(f"{_GET} http://index.example/simple/ http://index.example/simple/{WORD}/"),
        ("network.attempt", WORD),
    ),
    Void(
        "npm, a package",
        shell(f"{_JSON} -X PUT -d '{_PACKAGE}' http://npm.example/{WORD}"),
        shell(f"{_GET} http://npm.example/{WORD} 'http://npm.example/-/v1/search?text={WORD}'"),
        ("network.attempt", WORD),
    ),
    Void(
        "debian, an upload",
        shell(f"{_GET} -T /etc/hostname {_APT}"),
        shell(f"{_GET} {_APT} http://apt.example/dists/stable/main/binary-amd64/Packages"),
        ("network.http", WORD),
    ),
    Void(
        "smtp, a mail",
        _mail(*_ENVELOPE, "DATA", "text\r\n.", "QUIT"),
        _mail(*_WHOIS),
        ("network.attempt", WORD),
    ),
    Void(
        "openai, a conversation",
        shell(f"{_POST} '{_CHAT}' http://model.example/v1/chat/completions"),
        shell(f"{_POST} '{_AND}' http://model.example/v1/responses"),
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
        _postgres(WORD),
        _postgres("anybody"),
        ("network.stream", '"stand_in": "sql"'),
    ),
    Void(
        "ssh, a client's version",
        _talk("ssh.example", 22, f"SSH-2.0-{WORD}\r\n".encode(), "a line"),
        _talk("ssh.example", 22, b"SSH-2.0-anybody\r\n", "a line"),
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
        shell(f"{_GET} -d {WORD} {_ELSEWHERE}/api/things"),
        shell(f"{_GET} {_ELSEWHERE}/api/things {_ELSEWHERE}/{WORD}"),
        ("network.attempt", "elsewhere.test/api/things"),
    ),
    Void(
        "the sink, some bytes",
        _talk("203.0.113.5", 4444, WORD.encode(), "end", "hear"),
        _talk("203.0.113.5", 4444, b"anything", "end", "hear"),
        ("network.stream", "203.0.113.5"),
    ),
    Void("the resolver, a name", _RESOLVE, _RESOLVE, ("network.dns", WORD)),
)
"""Each takes it, says so on the record, and answers afterwards as before."""
