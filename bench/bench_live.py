"""How far browsers of the live page are behind: events a second, lag, the server's memory. `python bench/bench_live.py [--clients N] [--rate N] [--seconds N]`

A real `belljar serve`, a real ledger that is written at that rate, and clients that read its stream as a browser does. The lag of an event: from the return
of `record` to the moment that a client has the batch it is in. Clients and writer are one process, beside the server.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import anyio
from bench_cells import percentile

from belljar.events import Event, Kind
from belljar.ledger.rundir import RunDirectory

Batches = list[tuple[float, int, int]]
REQUEST = "GET /events HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nX-Belljar-Secret: {}\r\n\r\n"


async def client(port: int, secret: str, batches: Batches, problems: list[str]) -> None:
    """Read the stream, and note when which events came."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(REQUEST.format(port, secret).encode())
        rest, due = b"", 0
        async for piece in stream:
            *parts, rest = (rest + piece).split(b"\n\n")
            for part in (part for part in parts if b'"seq": ' in part):
                first, last = (
                    int(part[at + 7 : at + 17].partition(b",")[0])
                    for at in (part.find(b'"seq": '), part.rfind(b'"seq": '))
                )
                problems += (
                    []
                    if (first, last - first + 1) == (due, part.count(b'"seq": '))
                    else [f"{first} where {due} is due"]
                )
                due = last + 1
                batches.append((time.monotonic(), first, due))


async def write(home: Path, rate: int, seconds: float, recorded: list[float]) -> None:
    """Record at this rate, and note when; the first event is the run's."""
    with RunDirectory(home, "bench", ["bench"]) as run:
        recorded.append(began := time.monotonic())
        while (passed := time.monotonic() - began) < seconds:
            while len(recorded) <= passed * rate:
                run.recorder.record(
                    Event(kind=Kind.PROTOCOL_VIOLATION, cell_id="c-0123456789ab", data={"reason": "x" * 80})
                )
                recorded.append(time.monotonic())
            await anyio.sleep(0.005)
        await anyio.sleep(2)


async def measure(clients: int, rate: int, seconds: float) -> None:
    """Measure once, in a store of its own, and print the figures."""
    batches, recorded, problems = Batches(), list[float](), list[str]()
    with tempfile.TemporaryDirectory() as home:
        argv = [sys.executable, "-m", "belljar", "serve", "--port", "0"]
        env = {**os.environ, "BELLJAR_HOME": home}
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as server:  # noqa: ASYNC220
            assert server.stdout
            base, _, token = server.stdout.readline().strip().partition("/#")
            with urllib.request.urlopen(f"{base}/session", json.dumps({"token": token}).encode()) as answer:  # noqa: ASYNC210, S310 - loopback
                secret = json.load(answer)["secret"]
            async with anyio.create_task_group() as tasks:
                for _ in range(clients):
                    tasks.start_soon(client, int(base.rpartition(":")[2]), secret, batches, problems)
                await write(Path(home), rate, seconds, recorded)
                tasks.cancel_scope.cancel()
            memory = re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text())  # noqa: ASYNC240
            server.terminate()
    lags = [now - recorded[seq] for now, first, end in batches for seq in range(max(1, first), min(end, len(recorded)))]
    received, events = len(lags) / (clients * (len(recorded) - 1)), (len(recorded) - 1) / seconds
    print(
        f"{clients} clients, {events:.0f} events/s: {received:.1%} received, {len(problems)} batches out of order, server {int(memory[0]) >> 10} MiB"
    )
    print("lag", *(f"P{share} {1000 * (percentile(lags, share) or 0):.0f} ms" for share in (50, 95, 100)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("clients", 100), ("rate", 1000), ("seconds", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    anyio.run(measure, given.clients, given.rate, given.seconds)
