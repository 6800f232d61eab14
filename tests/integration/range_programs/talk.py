"""Two cells of a real range that talk by HTTP, while one lies with frames of its own making; prints
what is read of it afterwards, as JSON.

`python -m tests.integration.range_programs.talk HOME`, as root.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
from belljar.network.capture.traffic_analysis import seen_exchanges
from tests.integration.range_programs.scene import Cell, Scene, cell, within

from belljar.network.owner.making import PACKETS
from belljar.plan.network import PortPlan, StandInPlan

TARGET = StandInPlan(
    id="other", kind="cell", names=("other.example",), ports=(PortPlan(number=80, protocol="http"),)
)
ANSWER_BYTES = 300_000
SERVE = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "300000")
        self.end_headers()
        self.wfile.write(bytes(300000))
http.server.HTTPServer(("0.0.0.0", 80), Handler).serve_forever()
"""
ASK = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], 80, timeout=30)
connection.request("POST", "/real", bytes(100000))
print(len(connection.getresponse().read()))
"""
LIE = """
import socket, struct, sys
me, target, mac, gateway_mac, theirs = sys.argv[1:]
packed = [socket.inet_aton(address) for address in (me, target)]
def ones(data):
    return ~(int.from_bytes(data + b"\\0" * (len(data) % 2), "big") % 0xFFFF) & 0xFFFF
def segment(source, target, ports, sequence, acknowledged, flags, payload=b"", ttl=64, by=mac):
    tcp = struct.pack("!HHIIBBHHH", *ports, sequence, acknowledged, 0x50, flags, 1024, 0, 0)
    check = ones(source + target + struct.pack("!HH", 6, 20 + len(payload)) + tcp + payload)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 40 + len(payload), 7, 0, ttl, 6, 0) + source + target
    head = head[:10] + struct.pack("!H", ones(head)) + head[12:]
    ether = bytes.fromhex((gateway_mac + by).replace(":", "")) + b"\\x08\\x00"
    return ether + head + tcp[:16] + struct.pack("!H", check) + tcp[18:] + payload
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
request = b"GET /forged HTTP/1.1\\r\\nHost: other.example\\r\\n\\r\\n"
here, there = packed
s.send(segment(there, here, (80, 5555), 0, 1, 18))  # the target's SYN-ACK, by the agent
s.send(segment(there, here, (80, 5555), 0, 1, 18, by=theirs))  # as if the range had sent it
s.send(segment(here, there, (5555, 80), 1, 1, 16, request, ttl=1))  # arrives nowhere
s.send(segment(here, there, (5555, 80), 1, 1, 16, request))  # arrives, of no connection
"""


def serve_in(other: Cell) -> subprocess.Popen[bytes]:
    """A web server within the cell."""
    words = ["nsenter", f"--net=/proc/self/fd/{other.namespace}", sys.executable, "-I", "-c", SERVE]
    return subprocess.Popen(words, stderr=subprocess.DEVNULL, pass_fds=[other.namespace])


async def main(home: Path) -> dict[str, Any]:
    """What is told of them."""
    scene = Scene(home, stand_ins=(TARGET,))
    agent_port, other_port = scene.layout.cell("agent"), scene.layout.cell("other")
    async with scene.open() as made:
        with cell(made) as agent, cell(made) as other:
            await made.attach("agent", agent.pid)
            await made.attach("other", other.pid)
            server = serve_in(other)
            try:
                is_up = within(
                    lambda: (
                        agent.talk(("tcp", other_port.address, 80))
                        != ["ConnectionRefusedError 111"]
                    )
                )
                got = agent.run(sys.executable, "-I", "-c", ASK, other_port.address)
                macs = agent_port.mac, agent_port.gateway_mac, other_port.gateway_mac
                lie = agent.run(
                    sys.executable, "-I", "-c", LIE, agent_port.address, other_port.address, *macs
                )
            finally:
                server.kill()
                server.wait()
    with (scene.directory / PACKETS).open("rb") as record:
        events = list(seen_exchanges([record], scene.layout, scene.network, range_id=made.id))
    told = [{"kind": str(event.kind), **event.data} for event in events]
    return {**scene.summary(made), "up": is_up, "got": got.strip(), "lie": lie, "told": told}


if __name__ == "__main__":
    print(json.dumps(anyio.run(main, Path(sys.argv[1]))))
