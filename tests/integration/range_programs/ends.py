"""Scenarios in which a range ends: what its cells are in the midst of, and gateways that
report nothing."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

from tests.integration.range_programs.blows import ended
from tests.integration.range_programs.ordinary import full_disk
from tests.integration.range_programs.scene import Scene, cell, processes

from belljar.network.owner.processes import SERVE
from belljar.plan.network import PortPlan, StandInPlan

SITE = StandInPlan(
    id="site",
    kind="http",
    names=("site.example",),
    ports=(PortPlan(number=80, protocol="http"), PortPlan(number=443, protocol="tls")),
    settings={"routes": [{"path": "/", "method": "POST", "json": {"got": "{{ json.word }}"}}]},
)
MAIL = StandInPlan(
    id="mail", kind="smtp", names=("mail.example",), ports=(PortPlan(number=25, protocol="smtp"),)
)
BEGIN = r"""
import socket, ssl, sys, time
site, mail = sys.argv[1:3]
def connect(address, port):
    sock = socket.create_connection((address, port), 20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is said has arrived
    sock.settimeout(20)
    return sock
post = connect(site, 80)
post.sendall(b"POST / HTTP/1.1\r\nHost: site.example\r\nContent-Length: 50\r\n\r\nhalf of it")
head = connect(site, 80)
head.sendall(b"GET /what?is=said HTTP/1.1\r\nHost: si")
context = ssl._create_unverified_context()
tls = context.wrap_socket(connect(site, 443), server_hostname="site.example")
tls.sendall(b"POST / HTTP/1.1\r\nHost: site.example\r\nContent-Length: 50\r\n\r\nhalf of another")
hello = connect(site, 443)
hello.sendall(b"\x16\x03\x01\x02\x00\x01")
smtp = connect(mail, 25)
for said, expected in ((b"", b"220"), (b"EHLO x\r\n", b"250"), (b"MAIL FROM:<a@b.example>\r\n", b"250"), (b"RCPT TO:<c@d.example>\r\n", b"250"), (b"DATA\r\n", b"354")):
    smtp.sendall(said)
    got = b""
    while not (got.endswith(b"\r\n") and got.splitlines()[-1][:4] == expected + b" "):
        got += smtp.recv(1000)
smtp.sendall(b"Subject: x\r\n\r\nhalf a li")
idle = connect(site, 80)
sink = connect("203.0.113.7", 4444)
sink.sendall(b"fifteen bytes.\n")
print("begun", flush=True)
time.sleep(600)
"""


async def in_progress(home: Path) -> dict[str, Any]:
    """A range ends while its cell, which lives, is in the midst of everything."""
    scene = Scene(home, stand_ins=(SITE, MAIL), sink=True)
    async with scene.open(serve=SERVE) as made:
        with cell(made) as agent:
            await made.attach("agent", agent.pid)
            names = scene.address("site.example"), scene.address("mail.example")
            program = f"import sys; sys.path[:] = {sys.path!r}\n{BEGIN}"
            with agent.going_on(sys.executable, "-I", "-c", program, *names) as out:
                said = out.readline()
                await made.destroy()
    events = [event for event in scene.recorder.events if event.kind != "network.flow"]
    at, after = [str(event.kind) for event in events].index("range.destroying"), []
    for event in events[at + 1 : -1]:
        bodies = {body.name: body.content.decode("latin-1") for body in event.bodies}
        after.append([str(event.kind), dict(event.data), bodies])
    unreported = made.counters()["unreported_at_end"]
    return {**scene.summary(made), "said": said, "after": after, "unreported": unreported}


async def unreported(home: Path) -> dict[str, Any]:
    """A gateway that does not say that it has told everything."""
    scene = Scene(home)
    with mock.patch("belljar.network.owner.watch.SHUTDOWN_GRACE_S", 0.2):
        async with scene.open() as made:
            os.kill(processes(made)[1].pid, signal.SIGSTOP)
    return {
        **scene.summary(made),
        "unreported": scene.data("range.destroyed")[0]["counters"]["unreported_at_end"],
    }


async def silent(home: Path) -> dict[str, Any]:
    """Parts that don't say what they are to say at a range's end."""
    stop = lambda _, supervisor, __: os.kill(supervisor.pid, signal.SIGSTOP)  # noqa: E731
    return {"supervisor": await ended(home, stop, 0.5), "gateway": await unreported(home)}


SCENARIOS: dict[str, Callable[[Path], Awaitable[dict[str, Any]]]] = {
    "in_progress": in_progress,
    "silent": silent,
    "full": full_disk,
}
