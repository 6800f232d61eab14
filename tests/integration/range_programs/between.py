"""Two cells of a real range that talk through its gateway, as whoever runs this."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.fakes.pcapng import packets
from tests.integration.range_programs.scene import Scene, cell, within

from belljar.network.owner.processes import PACKETS, SERVE
from belljar.plan.network import PortPlan, StandInPlan

ECHO, DEAF, CLOSED, UNNAMED = 5000, 5002, 5004, 5005
OTHER = StandInPlan(
    id="other",
    kind="cell",
    names=("other.example",),
    ports=(
        PortPlan(number=80, protocol="http"),
        *(PortPlan(number=number, protocol="tcp") for number in (ECHO, DEAF, CLOSED)),
    ),
)
ANSWER_BYTES = 300_000
SERVE_ALL = r"""
import http.server, socket, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        got = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "300000")
        self.send_header("X-Peer", self.client_address[0])
        self.end_headers()
        self.wfile.write(bytes(300000))
    def log_message(self, *_): pass
def echo(end):
    while data := end.recv(65536):
        end.sendall(data)
    end.sendall(b"end")
    end.close()
kept = []
def serve(port, answer):
    with socket.create_server(("0.0.0.0", port)) as listener:
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
for port, answer in {5000: echo, 5002: kept.append}.items():
    threading.Thread(target=serve, args=(port, answer), daemon=True).start()
http.server.ThreadingHTTPServer(("0.0.0.0", 80), Handler).serve_forever()
"""
ASK = r"""
import http.client, json, socket, sys, time
target, me = sys.argv[1:]
seen = {}
connection = http.client.HTTPConnection(target, 80, timeout=300)
for size in (100000, 5):
    connection.request("POST", "/real", b"b" * size)
    answer = connection.getresponse()
    seen["got"] = len(answer.read())
    seen["peer"] = answer.headers["X-Peer"] == me
connection.close()
def dial(port):
    return socket.create_connection((target, port), timeout=300)
with dial(5000) as end:
    end.sendall(b"hello")
    seen["echo"] = end.recv(100).decode()
    end.shutdown(socket.SHUT_WR)
    seen["half"] = end.recv(100).decode()
with dial(5002) as end:
    end.settimeout(1)
    sent = 0
    try:
        while sent < 50 << 20:
            sent += end.send(b"y" * 65536)
    except TimeoutError:
        pass
    seen["deaf"] = sent
for port in (5004, 5005):
    began = time.monotonic()
    try:
        dial(port)
    except OSError as exc:
        seen[str(port)] = [type(exc).__name__, time.monotonic() - began]
print(json.dumps(seen))
"""
STAY = r"""
import socket, sys, time
end = socket.create_connection((sys.argv[1], 5000), timeout=300)
end.sendall(b"unfinished")
web = socket.create_connection((sys.argv[1], 80), timeout=300)
web.sendall(b"POST /half HTTP/1.1\r\nHost: other.example\r\nContent-Length: 10\r\n\r\nhalf")
time.sleep(600)
"""
LIE = r"""
import socket, struct, sys
me, target, mac, gateway_mac = sys.argv[1:]
def ones(data):
    return ~(int.from_bytes(data + b"\0" * (len(data) % 2), "big") % 0xFFFF) & 0xFFFF
def segment(source, target, ports, flags, payload=b""):
    source, target = map(socket.inet_aton, (source, target))
    tcp = struct.pack("!HHIIBBHHH", *ports, 1, 1, 0x50, flags, 1024, 0, 0)
    check = ones(source + target + struct.pack("!HH", 6, 20 + len(payload)) + tcp + payload)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 40 + len(payload), 7, 0, 64, 6, 0) + source + target
    head = head[:10] + struct.pack("!H", ones(head)) + head[12:]
    ether = bytes.fromhex((gateway_mac + mac).replace(":", "")) + b"\x08\x00"
    return ether + head + tcp[:16] + struct.pack("!H", check) + tcp[18:] + payload
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
request = b"GET /forged HTTP/1.1\r\nHost: other.example\r\n\r\n"
s.send(segment(me, target, (5555, 80), 16, request))  # of no connection
s.send(segment(me, target, (5556, 5004), 16))
s.send(segment(me, target, (5557, 80), 18))
s.send(segment(target, me, (80, 5555), 18))  # the target's, by the agent
"""


def contents(scene: Scene) -> list[bytes]:
    return [body.content for event in scene.recorder.events for body in event.bodies]


async def between(home: Path) -> dict[str, Any]:
    """What a cell sees of another, and what is on record of it."""
    scene = Scene(home, stand_ins=(OTHER,))
    agent_port, other_port = scene.layout.cell("agent"), scene.layout.cell("other")
    python, half = (sys.executable, "-I", "-c"), b"\r\n\r\nhalf"
    async with scene.open(serve=SERVE) as made:
        with cell(made) as agent, cell(made) as other:
            await made.attach("agent", agent.pid)
            before = agent.talk(("tcp", other_port.address, 80))  # nobody is there yet
            await made.attach("other", other.pid)
            with other.going_on(*python, SERVE_ALL):
                echo = ("tcp", other_port.address, ECHO)
                is_up = within(lambda: agent.talk(echo) != ["ConnectionRefusedError 111"])
                said = agent.run(*python, ASK, other_port.address, agent_port.address)
                macs = agent_port.mac, agent_port.gateway_mac
                lie = agent.run(*python, LIE, agent_port.address, other_port.address, *macs)
                theirs = other_port.mac, other_port.gateway_mac
                lie += other.run(*python, LIE, other_port.address, agent_port.address, *theirs)
                back = other.talk(("tcp", agent_port.address, 80))
                with agent.going_on(*python, STAY, other_port.address):
                    within(lambda: any(half in kept for kept in contents(scene)))
                    await made.destroy()
    frames = packets((scene.directory / PACKETS).read_bytes())
    to_cells = [bytes.fromhex(port.mac.replace(":", "")) for port in (agent_port, other_port)]
    events = [event for event in scene.recorder.events if event.kind.startswith("network.")]
    return {
        **scene.summary(made),
        "before": before,
        "up": is_up,
        "seen": json.loads(said),
        "lie": lie,
        "back": back,
        "forged": sum(b"/forged" in frame for _, frame, _ in frames if frame[:6] in to_cells),
        "events": [
            {"kind": str(each.kind), **each.data, "bodies": _shown(each.bodies)} for each in events
        ],
        "counters": dict(made.counters()),
    }


def _shown(bodies: tuple[Any, ...]) -> dict[str, list[Any]]:
    return {
        body.name: [
            *(body.content[:100].decode("latin-1"), len(body.content)),
            *(body.total_bytes, body.sha256),
        ]
        for body in bodies
    }


SCENARIOS = {"between": between}
