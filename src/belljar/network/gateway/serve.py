"""The gateway's main: serves until its range ends or its owner is gone."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from belljar.events import Body, JsonValue, Kind
from belljar.network import stand_ins
from belljar.network.decide import CATCH_ALL, UPSTREAM
from belljar.network.gateway import upstream
from belljar.network.gateway.accept import Front
from belljar.network.gateway.config import GatewayConfig, Listeners
from belljar.network.gateway.context import StandInContext
from belljar.network.gateway.guard import Guard
from belljar.network.gateway.reporter import (
    Reporter,
    TooManyRequestsError,
    die_without_memory,
)
from belljar.network.gateway.site import Site
from belljar.network.gateway.tls import Authority, Terminator
from belljar.network.ipc import READY, Item
from belljar.plan.network import StandInPlan

SETTLE_SHARE: Final = 0.25  # Of the time for the end: the most that what has arrived may take.
SETTLE_TURNS: Final = 16  # Of the loop, from bytes in a socket to an event of them.
Make = Callable[[str, StandInContext], Any]  # `stand_ins.make`: what answers for a kind.


def serve(config: GatewayConfig, listeners: Listeners, events: socket.socket) -> NoReturn:
    """Serve until the range ends (status 0), the owner is gone (70) or it fails (1).

    Call it after confinement, in the loop made before. Sends `ready`.
    """
    asyncio.get_event_loop_policy().get_event_loop().run_until_complete(
        run(config, listeners, events)
    )
    os._exit(0)


async def run(
    config: GatewayConfig, listeners: Listeners, events: socket.socket, make: Make = stand_ins.make
) -> None:
    """Serve until cancelled or ended and reported."""
    asyncio.get_running_loop().set_exception_handler(_handle_exception)
    reporter = Reporter(events, config.bounds)
    reporter.start()
    upstreams = frozenset(plan.id for plan in config.stand_ins if plan.kind == UPSTREAM)
    site = Site(
        layout=config.layout,
        stand_ins=config.stand_ins,
        bounds=config.bounds,
        reporter=reporter,
        guard=Guard(config.guard, upstreams),
    )
    site.apps, site.streams = made(config, site, make)
    authority = Authority(config.scratch, dt.datetime.now(dt.UTC), config.bounds.leaf_certificates)
    try:
        async with asyncio.TaskGroup() as group:
            front = Front(site, Terminator(site, authority), group)
            front.listen(listeners)
            await reporter.record(Item(READY, {"certificate": authority.certificate.decode()}))
            await reporter.end_requested.wait()
            await end(site, front)
            raise _RangeEndedError
    except* _RangeEndedError:
        pass
    finally:
        asyncio.get_running_loop().remove_reader(listeners.dns_udp.fileno())
        reporter.stop()


def _handle_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Take an exception of a callback's, which no connection sees."""
    if isinstance(context.get("exception"), MemoryError):
        die_without_memory()
    loop.default_exception_handler(context)


async def end(site: Site, front: Front) -> None:
    """Settle, cut what is open, report the end in time."""
    reporter, loop = site.reporter, asyncio.get_running_loop()
    until = loop.time() + reporter.end_within_s
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(reporter.end_within_s * SETTLE_SHARE):
            await settle(reporter)
    unended = await front.end(until)
    await reporter.end(unended + site.unreported, until)


async def settle(reporter: Reporter) -> None:
    """Return when the sockets bring nothing more."""
    before = -1
    while before != reporter.posted:
        before = reporter.posted
        await reporter.flush()
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)


class _RangeEndedError(Exception):
    """Ends the tasks when the range has ended."""


def made(config: GatewayConfig, site: Site, make: Make) -> tuple[dict[str, Any], dict[str, Any]]:
    """Stand-ins by id: ASGI apps, and servers of streams."""
    plans = [plan for plan in config.stand_ins if not plan.is_target and plan.kind != UPSTREAM]
    apps = {plan.id: make(plan.kind, context_of(plan, config, site)) for plan in plans}
    apps |= {
        plan.id: upstream.UpstreamApp(plan, site, config.authorities)
        for plan in config.stand_ins
        if plan.kind == UPSTREAM
    }
    if config.layout.catch_all is not None:
        catch_all = StandInPlan(id=CATCH_ALL, kind="catch_all", names=(), ports=())
        apps[CATCH_ALL] = make(catch_all.kind, context_of(catch_all, config, site))
    of_streams = {plan.id for plan in plans if plan.kind in stand_ins.STREAM_KINDS}
    streams = {id_: apps.pop(id_) for id_ in of_streams}
    return apps, streams


def context_of(plan: StandInPlan, config: GatewayConfig, site: Site) -> StandInContext:
    """A stand-in's context: own randomness, own name on records."""

    async def record(kind: str, data: Mapping[str, JsonValue], bodies: Sequence[Body] = ()) -> None:
        await site.record(lambda: Item(Kind(kind), {"stand_in": plan.id, **data}, tuple(bodies)))

    async def ask(kind: str, body: bytes) -> bytes:
        try:
            return bytes(await site.reporter.ask(kind, body))
        except TooManyRequestsError:
            site.hit("questions")
            raise

    return StandInContext(
        id=plan.id,
        names=plan.names,
        settings=plan.settings,
        files=plan.directory or Path("/nonexistent"),
        clock=time.time,
        random=seeded(f"{config.range_seed}/{plan.id}"),
        record=record,
        ask=ask,
    )


def seeded(seed: str) -> Callable[[int], bytes]:
    """A reproducible source of bytes."""
    blocks = itertools.count()

    def random(count: int) -> bytes:
        got = b""
        while len(got) < count:
            got += hashlib.sha256(f"{next(blocks)}/{seed}".encode()).digest()
        return got[:count]

    return random
