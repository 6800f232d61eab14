"""Accepts connections and serves each by what it dialled."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from belljar.events import Kind
from belljar.network.decide import ENCRYPTED
from belljar.network.gateway.config import Listeners
from belljar.network.gateway.dns_server import DnsServer
from belljar.network.gateway.pipe import Pipe, TcpPipe, reset
from belljar.network.gateway.proxy import Proxy
from belljar.network.gateway.server import HttpConnection
from belljar.network.gateway.site import Account, Peer, Site, connection_item
from belljar.network.gateway.stream import RecordedStream, sink, stream_data
from belljar.network.gateway.tls import Terminator
from belljar.network.ipc import Item

# For descriptors or memory to become free: accepting at once would fail again.
_PAUSE_S: Final = 0.05
CANCEL_BATCH: Final = 64  # Connections between two looks at the time.
_TRANSIENT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# No later accept can succeed.
_DEAD_LISTENER: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})

Handler = Callable[[socket.socket, Peer], Awaitable[None]]


class Front:
    """All listeners of a gateway."""

    def __init__(self, site: Site, terminator: Terminator, group: asyncio.TaskGroup) -> None:
        self._site, self._terminator, self._group = site, terminator, group
        self._dns = DnsServer(site, group)
        self._open: Counter[str] = Counter()
        self._of_cell: Counter[str] = Counter()
        self._connections: set[asyncio.Task[Any] | None] = set()

    def listen(self, listeners: Listeners) -> None:
        """Answer DNS, serve stand-ins and the sink, join cells."""
        self._dns.listen(listeners.dns_udp)
        served: list[tuple[socket.socket, str, Handler]] = [
            (tcp, "connections", self._serve) for tcp in listeners.tcp.values()
        ]
        if listeners.sink is not None:
            served.append((listeners.sink, "connections", partial(sink, self._site)))
        if listeners.cells is not None and listeners.dialled is not None:
            proxy = Proxy(self._site, listeners.dialled)
            served.append((listeners.cells, "cell_connections", proxy.serve))
        for tcp, kind, handler in served:
            self._group.create_task(self.accept(tcp, kind, handler))

    async def accept(self, listener: socket.socket, kind: str, handler: Handler) -> None:
        """A dead listener raises `OSError`, which ends the gateway."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)  # noqa: FBT003 - the library's signature
        # Its connections have it too: else an urgent byte is taken out of the stream, and in no
        # read.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        while True:
            try:
                sock, source = await loop.sock_accept(listener)
                self._take(sock, source, kind, handler)
            except OSError as error:
                if error.errno in _DEAD_LISTENER:
                    raise
                if error.errno in _TRANSIENT:
                    self._site.hit("connections")
                    await asyncio.sleep(_PAUSE_S)

    def _take(
        self, sock: socket.socket, source: tuple[str, int], kind: str, handler: Handler
    ) -> None:
        bounds, address = self._site.bounds, source[0]
        if self._open[kind] >= getattr(bounds, kind):
            self._site.hit(kind)
            reset(sock)
        elif self._of_cell[address] >= bounds.connections_per_cell:
            self._site.hit("connections_per_cell")
            reset(sock)
        else:
            self._open[kind] += 1
            self._of_cell[address] += 1
            self._group.create_task(self._one(sock, source, kind, handler))

    async def _one(
        self, sock: socket.socket, source: tuple[str, int], kind: str, handler: Handler
    ) -> None:
        task = asyncio.current_task()
        peer = Peer(cell=self._site.cell(source[0]), address="", port=0)
        try:
            account = Account(next(self._site.connections))
            peer = replace(peer, source_port=source[1], account=account)
            self._connections.add(task)
            sock.setblocking(False)  # noqa: FBT003 - the library's signature
            # Answers are written whole: to wait for more would only delay their ends.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            dialled, port = sock.getsockname()
            peer = replace(peer, address=dialled, port=port)
            try:
                await self._site.reporter.wait_for_room()
            finally:  # in order, so on record before anything that is answered
                self._site.post(partial(connection_item, peer))
            await handler(sock, peer)
        except OSError:
            pass
        except asyncio.CancelledError:
            reset(sock)
            raise
        except Exception as error:  # noqa: BLE001
            # A fault that one connection can cause ends that connection, on record.
            reset(sock)
            reason = f"the gateway failed: {type(error).__name__}"
            await self._site.record(
                lambda: Item(Kind.NETWORK_STREAM, stream_data(peer, "", "refused", reason))
            )
        finally:
            self._connections.discard(task)
            self._release(sock, source[0], kind)

    def _release(self, sock: socket.socket, address: str, kind: str) -> None:
        sock.close()
        self._open[kind] -= 1
        self._of_cell[address] -= 1
        if not self._of_cell[address]:
            del self._of_cell[address]

    async def end(self, until: float) -> int:
        """Cancel connections, each on record; return how many missed `until`."""
        loop = asyncio.get_running_loop()
        self._site.is_ending = True
        self._site.post_limits()
        connections = [
            task for task in self._connections if task is not None and task not in self._site.idle
        ]
        for at in range(0, len(connections), CANCEL_BATCH):
            if loop.time() >= until:
                break
            for task in connections[at : at + CANCEL_BATCH]:
                task.cancel()
            await asyncio.sleep(0)
        if connections:
            await asyncio.wait(connections, timeout=max(0.0, until - loop.time()))
        return sum(not task.done() for task in connections)

    async def _serve(self, sock: socket.socket, peer: Peer) -> None:
        verdict = self._site.judge(peer)
        if not verdict.allowed:
            data = stream_data(peer, verdict.stand_in, "refused", verdict.reason)
            await self._site.record(Item(Kind.NETWORK_STREAM, data))
            reset(sock)
        elif verdict.protocol not in ENCRYPTED:
            await self._speak(TcpPipe(sock), peer)
        elif self._open["tls_connections"] >= self._site.bounds.tls_connections:
            self._site.hit("tls_connections")
            reset(sock)
        else:
            self._open["tls_connections"] += 1
            try:
                pipe = TcpPipe(sock)
                shaken = await self._terminator.handshake(pipe, peer)
                if shaken is None:
                    await pipe.close()
                else:
                    await self._speak(*shaken)
            finally:
                self._open["tls_connections"] -= 1

    async def _speak(self, pipe: Pipe, peer: Peer) -> None:
        verdict = self._site.judge(peer)
        stream = self._site.streams.get(verdict.stand_in)
        if stream is not None:
            await RecordedStream(self._site, peer, pipe, verdict.stand_in).run(stream)
        else:
            await HttpConnection(self._site, peer, pipe).run()
