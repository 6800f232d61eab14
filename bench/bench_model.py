"""A model server in a cell against the same server on this host:
`python bench/bench_model.py [--tiers container,gvisor] [--rounds N] [--tokens N] [--json]`.

llama.cpp's server with SmolLM2 (`belljar model image`, `belljar model get smollm2`), a thread a
processor: the first token and tokens a second of a streamed answer, round trips of a request that
computes nothing, the time until a cell's server answers. Host and cells take turns; the client is
the same. The server's package for the host is fetched once into `build/`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteStream

from belljar.cell.parts import start_run
from belljar.image.store import MODEL_IMAGE
from belljar.model.http import Connect, Question, ServerError, ask_server
from belljar.model.serve import HEALTH, LLAMA_PIP, load_model, open_model, server_argv
from belljar.model.weights import EXAMPLE_SHA256, find_weights
from belljar.policy.loaded import with_tier
from belljar.policy.sections import ModelBlock

TRIPS, CPUS = 100, 2
MODEL = {"weights": {"sha256": EXAMPLE_SHA256}, "context": 1024}
POLICY = {
    "belljar": 1,
    "name": "smollm2",
    "risk": "low",
    "image": MODEL_IMAGE,
    "resources": {"cpus": CPUS, "memory": "1GiB", "disk": "64MiB"},
    "model": MODEL,
}


async def whole(connect: Connect, question: Question) -> list[float]:
    """When each part of the answer came."""
    times = []
    async with ask_server(connect, question, max_bytes=16 << 20, timeout_s=900) as answer:
        while await answer.next_part() is not None:
            times.append(time.perf_counter())
    return times


async def measure(client: Connect, number: int, tokens: int) -> dict[str, float]:
    """The figures of one server."""
    asks = {
        "messages": [{"role": "user", "content": f"Count from {number} upwards."}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    body = json.dumps(asks).encode()
    question = Question(method="POST", path="/v1/chat/completions", body=body)
    began = time.perf_counter()
    times = await whole(client, question)
    trips = []
    for _ in range(TRIPS):
        start = time.perf_counter()
        await whole(client, HEALTH)
        trips.append((time.perf_counter() - start) * 1e3)
    return {
        "first_token_ms": (times[0] - began) * 1e3,
        "tokens_s": tokens / (times[-1] - began),
        "next_tokens_s": (tokens - 1) / (times[-1] - times[0]),
        "round_trip_ms": statistics.median(trips),
    }


@contextmanager
def host_server() -> Iterator[int]:
    """The same program on this host's loopback; its port."""
    packages = Path(__file__).parents[1] / "build" / "model-host"
    if not packages.is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages)]
        subprocess.run([*pip, "--no-deps", *LLAMA_PIP], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    weights = find_weights(EXAMPLE_SHA256)
    block = ModelBlock.model_validate({**MODEL, "port": port})
    argv = server_argv(block, served=weights.served, threads=CPUS, name="smollm2")
    file = str(weights.path / "data" / weights.served)
    words = [file if word.startswith("/weights/") else word for word in argv[1:]]
    env = {**os.environ, "PYTHONPATH": str(packages)}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, *words], env=env, stdout=quiet, stderr=quiet)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


async def host_client(port: int) -> Connect:
    """As `ModelCell.connect`, once the server answers."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[ByteStream]:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            yield stream

    with anyio.fail_after(120):
        while True:
            with suppress(OSError, ServerError):
                await whole(connect, HEALTH)
                return connect
            await anyio.sleep(0.2)


async def rounds(tiers: list[str], count: int, tokens: int) -> dict[str, dict[str, list[float]]]:
    """Each place's figures, of each round; all servers run, one at a time is asked."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    async with AsyncExitStack() as stack:
        run = stack.enter_context(start_run("bench", "model", []))
        clients: dict[str, Connect] = {"host": await host_client(stack.enter_context(host_server()))}
        for tier in tiers:
            began = time.perf_counter()
            loaded = with_tier(load_model(POLICY), tier)
            served = await stack.enter_async_context(open_model(loaded, run=run))
            found[tier]["start_s"].append(time.perf_counter() - began)
            clients[tier] = served.connect
        for number in range(count):
            for place, client in clients.items():
                for name, value in (await measure(client, number, tokens)).items():
                    found[place][name].append(value)
    return found


def main() -> None:
    """Print a table, or JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tiers", default="container,gvisor")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--tokens", type=int, default=48, help="fewer for an emulated microvm")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    found: Any = anyio.run(rounds, given.tiers.split(","), given.rounds, given.tokens)
    medians = {
        place: {name: statistics.median(values) for name, values in figures.items()} for place, figures in found.items()
    }
    if given.json:
        print(json.dumps(medians))
        return
    for place, figures in medians.items():
        print(place, "  ".join(f"{name} {value:.2f}" for name, value in figures.items()))
        if place != "host":
            ratio = figures["tokens_s"] / medians["host"]["tokens_s"]
            added = figures["round_trip_ms"] - medians["host"]["round_trip_ms"]
            print(f"  tokens against the host {ratio:.2f}; added to a round trip {added:.2f} ms")


if __name__ == "__main__":
    main()
