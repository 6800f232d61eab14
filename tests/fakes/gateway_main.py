"""A gateway's process for tests: the real `run`, on sockets that it inherits, with stand-ins of a
few lines. `python gateway_main.py CONFIG FDS`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncGenerator
from typing import Any

from belljar.dataclass import from_json
from belljar.network import stand_ins
from belljar.network.decide import CATCH_ALL
from belljar.network.gateway.config import GatewayConfig
from belljar.network.gateway.serve import run
from belljar.network.stand_ins.web import (
    App,
    ClientStream,
    HttpAnswer,
    Request,
    StandInContext,
    StreamApp,
    json_answer,
    text_answer,
)


def make(kind: str, context: StandInContext) -> Any:  # noqa: ANN401 - an app or a stream's server, by kind
    """A stand-in of a few lines: `smtp` greets and echoes lines, `http` and the range's catch-all
    are `echo`. Every other kind is the real one."""
    if kind == "smtp":
        return greeter(context)
    return (
        echo(context)
        if kind == "http" or context.id == CATCH_ALL
        else stand_ins.make(kind, context)
    )


def greeter(context: StandInContext) -> StreamApp:
    async def app(stream: ClientStream, cell: str) -> None:
        await stream.send(b"220 ready " + cell.encode() + b"\r\n")
        while data := await stream.receive():
            await stream.send(data)
            if data.endswith(b"QUIT\r\n"):
                await context.record({"what": "quit"})
                return

    return app


def echo(context: StandInContext) -> App:
    async def app(request: Request) -> HttpAnswer:
        match request.path:
            case "/crash":
                raise RuntimeError("a stand-in's fault")
            case "/spin":  # for years
                return text_answer(str(sum(1 for _ in range(1 << 60))))
            case "/never":
                await asyncio.Event().wait()
            case "/stream":
                return pieces([b"piece %d\n" % number for number in range(5)])
            case "/big":  # 8 MiB
                return pieces([b"x" * 65536] * 128)
            case "/attempt":
                await context.record({"what": "publish"})
        body = request.body.decode("latin-1")[:200_000]
        return json_answer({"stand_in": context.id, "path": request.path, "body": body})

    return app


def pieces(parts: list[bytes]) -> HttpAnswer:
    async def stream() -> AsyncGenerator[bytes]:
        for part in parts:
            yield part

    return HttpAnswer(stream=stream)


def main() -> None:
    """Serves on the descriptors that argv names: `{"events", "dns_udp", "sink", "tcp": {port: fd}}`."""
    config = from_json(GatewayConfig, json.loads(sys.argv[1]))
    fds = json.loads(sys.argv[2])
    named = {name: fds[name] for name in ("events", "dns_udp", "sink")} | fds["tcp"]
    taken = {name: socket.socket(fileno=fd) for name, fd in named.items()}
    for sock in taken.values():
        sock.setblocking(False)
    events = taken.pop("events")
    loop = asyncio.SelectorEventLoop()
    loop.run_until_complete(run(config, taken, events, make))
    os._exit(0)


if __name__ == "__main__":
    main()
