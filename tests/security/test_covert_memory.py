"""Nothing that a cell leaves in a range is found in another of the same run and policy: neither
beside it nor in one that is opened when it has ended.

Each kind of stand-in and part of a gateway that remembers something, written to and looked into by
real clients in a cell. In its own range each word is found, so looking works. Out of scope: how
long things take.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import pytest
from tests.security.covert_world import Side, opened_side

from belljar.cell.parts import start_run
from belljar.plan.addresses import RangeLayout
from belljar.policy.load import load_policy
from belljar.policy.loaded import LoadedPolicy

pytestmark = [pytest.mark.root, pytest.mark.vm]

WORD: Final = "left-in-one"
POLICY: Final = """\
belljar: 1
risk: low
user: root
resources: {memory: 256MiB, disk: 64MiB}
network:
  stand_ins:
    board: {kind: http, names: ["*.board.example"], ports: [443/tls], routes: [{path: /, body: x}]}
    replay: {kind: har, names: [replay.example], recording: files/replay.har}
    db:
      kind: cell
      user: root
      names: [db.example]
      ports: [80]
      files: [{source: files/server.py, target: /srv/server.py}]
      command: [python3, /srv/server.py]
      health: {http: /, port: 80, interval: 100ms, retries: 300}
    cloud: {kind: metadata}
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
}


def lay(folder: Path) -> Path:
    """The policy and its files, readable for gateways, who are nobody here."""
    for name, text in {**FILES, "policy.yaml": POLICY}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    return folder / "policy.yaml"


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
_TURN: Final = f"{_GET} http://replay.example/turns"
_LEAF: Final = (
    f"openssl s_client -connect {WORD}.board.example:443 -servername {WORD}.board.example <"
    " /dev/null 2> /dev/null | openssl x509 -noout -fingerprint -sha256"
)
_DESK: Final = "http://db.example/"
KEEPING: Final = (
    Memory("har, whose turn it is", _TURN, _TURN),
    Memory("cell, a target's memory", f"{_GET} -d {WORD} {_DESK}", f"{_GET} {_DESK}"),
    Memory(
        "metadata, a token",
        _TOKEN,
        f"{_GET} -i -H '{_HEADER}: {{key}}' {_CLOUD}/meta-data/instance-id",
        "(.+)",
        "HTTP/1.1 200",
    ),
    Memory("the gateway's certificates", _LEAF, _LEAF, "Fingerprint=([0-9A-F:]+)", "{key}"),
    Memory(
        "the cell's own disk and memory",
        f"echo {WORD} | tee /tmp/word /dev/shm/word",
        "cat /tmp/word /dev/shm/word",
    ),
)


@dataclass(frozen=True, kw_only=True)
class World:
    """Whether each word was found in its own range, in the one beside and in the one after."""

    looked: Mapping[str, tuple[bool, bool, bool]]
    layouts: tuple[RangeLayout, RangeLayout, RangeLayout]


@pytest.fixture(scope="module")
def world(vm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two ranges at the same time; then the first ends, and a third is opened beside the second."""
    return anyio.run(_play, load_policy(lay(tmp_path_factory.mktemp("memory"))), vm_home)


async def _play(policy: LoadedPolicy, home: Path) -> World:
    with start_run("covert", "memory", [], home=home) as run:
        async with AsyncExitStack() as first, opened_side(policy, run, home) as other:
            one = await first.enter_async_context(opened_side(policy, run, home))
            said = await one.run({each.name: ("bash", "-c", each.leave) for each in KEEPING})
            keys = {memory.name: memory.known(said[memory.name]) for memory in KEEPING}
            own, beside = await _look(one, keys), await _look(other, keys)
            await first.aclose()
            async with opened_side(policy, run, home) as third:
                after = await _look(third, keys)
            layouts = (one.network.layout, other.network.layout, third.network.layout)
    return World(
        looked={name: (own[name], beside[name], after[name]) for name in keys}, layouts=layouts
    )


async def _look(side: Side, keys: Mapping[str, str]) -> dict[str, bool]:
    said = await side.run(
        {each.name: ("bash", "-c", each.look.replace("{key}", keys[each.name])) for each in KEEPING}
    )
    return {
        each.name: each.found.replace("{key}", keys[each.name]) in said[each.name]
        for each in KEEPING
    }


@pytest.mark.promise("3.3")
@pytest.mark.parametrize("memory", KEEPING, ids=lambda memory: memory.name)
def test_what_is_kept_is_kept_for_its_own_range(world: World, memory: Memory) -> None:
    """Found where it was left; not beside; not in a range that begins when it has ended."""
    assert world.looked[memory.name] == (True, False, False)


def test_no_address_of_a_range_is_another_ones(world: World) -> None:
    """Prefixes, addresses and MACs: none tells of a range before or beside."""
    seen = []
    for layout in world.layouts:
        names = (name.address for name in layout.names if name.stand_in != "cloud")
        seen.append({layout.prefix, *names, *(cell.mac for cell in layout.cells)})
    assert not any(one & other for one, other in itertools.combinations(seen, 2))
