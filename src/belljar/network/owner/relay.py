"""Real upstreams' bytes pass through the owner, which counts them against budgets. Thread-safe.

A gateway may be compromised, and knows no other range. So it gets one end of a pair of sockets and
never the connection itself: each piece is counted before it goes on, and nothing beyond a budget
does.
"""

from __future__ import annotations

import errno
import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from belljar.plan.network import DIAL_BYTES, UpstreamPlan

PIECE_BYTES: Final = 64 << 10
# To an upstream at a time, each two threads of the owner's; a gateway of ours has eight.
MAX_OPEN: Final = 16


class NotDialledError(ValueError):
    """Nothing was dialled, and that is not recorded yet; the text says why."""


@dataclass(slots=True)
class _Account:
    """A range's bytes on one upstream."""

    plan: UpstreamPlan
    spent_bytes: int = 0
    sent_bytes: int = 0
    dialling: int = 0
    relays: list[_UpstreamRelay] = field(default_factory=list)


class RunSpending:
    """A run's bytes on each real upstream, and the connections that spend them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._accounts: dict[tuple[int, str], _Account] = {}
        self._closed: set[int] = set()
        self._numbers = itertools.count(1)

    def new_range(self) -> int:
        """A number unique to a range in the run."""
        return next(self._numbers)

    @contextmanager
    def dialling(self, number: int, upstream: UpstreamPlan) -> Iterator[None]:
        """Around a dial, which costs `DIAL_BYTES`. Raises `NotDialledError`."""
        with self.lock:
            account = self._accounts.setdefault((number, upstream.host), _Account(upstream))
            if len(account.relays) + account.dialling >= MAX_OPEN:
                raise NotDialledError(f"{MAX_OPEN} connections to the upstream are open")
            if self._left_bytes(account) < DIAL_BYTES:
                is_samples = account.spent_bytes + DIAL_BYTES > upstream.budget_bytes
                whose = "one sample" if is_samples else "the run"
                raise NotDialledError(f"the upstream's budget for {whose} is used up")
            account.spent_bytes += DIAL_BYTES
            account.dialling += 1
        try:
            yield
        finally:
            with self.lock:
                account.dialling -= 1

    def relay(self, number: int, upstream: UpstreamPlan, outer: socket.socket) -> socket.socket:
        """Take over a connection; return the end by which a gateway uses it. Raises `OSError`."""
        inner, theirs = socket.socketpair()
        try:
            outer.settimeout(None)
            account = self._accounts[number, upstream.host]
            with self.lock:
                if number in self._closed:
                    raise OSError(errno.ECONNABORTED, "the range is over")
                relay = _UpstreamRelay(self, account, inner, outer)
                threading.Thread(target=relay.run, name="upstream-relay", daemon=True).start()
                account.relays.append(relay)
        except BaseException:
            for end in (inner, theirs, outer):
                end.close()
            raise
        return theirs

    def spend(self, account: _Account, relay: _UpstreamRelay, size: int, *, is_sent: bool) -> int:
        """Count a piece before it passes; return how much of it may. Less cuts the connection."""
        with self.lock:
            passed = 0 if relay.is_cut else min(size, self._left_bytes(account))
            account.spent_bytes += passed
            account.sent_bytes += passed * is_sent
            relay.is_cut |= passed < size
            return passed

    def close(self, number: int) -> None:
        """End a range's connections; its bytes stay counted. Idempotent."""
        with self.lock:
            self._closed.add(number)
            for account in self._of(number):
                for relay in account.relays:
                    relay.is_cut = True
                    relay.shut_down()

    def spent_bytes(self, host: str) -> int:
        """By all ranges of the run until now."""
        with self.lock:
            return self._of_host(host)

    def sent_bytes(self, number: int) -> dict[str, int]:
        """Bytes that a range sent to each host."""
        with self.lock:
            return {account.plan.host: account.sent_bytes for account in self._of(number)}

    def _of(self, number: int) -> list[_Account]:
        return [account for (owner, _), account in self._accounts.items() if owner == number]

    def _of_host(self, host: str) -> int:
        return sum(a.spent_bytes for (_, name), a in self._accounts.items() if name == host)

    def _left_bytes(self, account: _Account) -> int:
        plan = account.plan
        of_run = plan.run_budget_bytes - self._of_host(plan.host)
        # Samples may have other budgets for the run: one's may be overspent by the others.
        return max(0, min(plan.budget_bytes - account.spent_bytes, of_run))


class _UpstreamRelay:
    """One connection: `inner` leads to the gateway, `outer` to the upstream."""

    def __init__(
        self, spending: RunSpending, account: _Account, inner: socket.socket, outer: socket.socket
    ) -> None:
        self._spending, self._account = spending, account
        self._inner, self._outer = inner, outer
        self.is_cut = False

    def run(self) -> None:
        """Pass bytes on until the gateway closes its end, or the connection is cut."""
        # A thread for each direction: an upstream may wait for its reader before it reads on
        answers = threading.Thread(target=self._pass_on, args=(self._outer, self._inner))
        try:
            answers.start()
            self._pass_on(self._inner, self._outer)
            answers.join()
        finally:
            with self._spending.lock:
                self._account.relays.remove(self)
            self._inner.close()
            self._outer.close()

    def _pass_on(self, source: socket.socket, to: socket.socket) -> None:
        is_sent = source is self._inner
        with suppress(OSError):  # one side is gone
            while data := source.recv(PIECE_BYTES):
                passed = self._spending.spend(self._account, self, len(data), is_sent=is_sent)
                to.sendall(data[:passed])
                if passed < len(data):
                    break
            else:
                if not is_sent:
                    # Not both ways: a gateway must tell an answer's end from a cut
                    to.shutdown(socket.SHUT_WR)
                    return
        self.shut_down()

    def shut_down(self) -> None:
        """End both sides."""
        for end in (self._inner, self._outer):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
