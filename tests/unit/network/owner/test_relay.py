"""A real upstream's bytes pass through the owner, within the budgets of a range and of the run."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.owner.relay import MAX_OPEN, NotDialledError, RunSpending
from belljar.plan.network import DIAL_BYTES, UpstreamPlan

HOST = "real.example"


def upstream(budget: int, run: int, host: str = HOST) -> UpstreamPlan:
    budgets = {"budget_bytes": budget, "run_budget_bytes": run}
    return UpstreamPlan(host=host, ports=(443,), methods=("GET",), reason="a test", **budgets)


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        theirs, _ = server.accept()
        theirs.settimeout(30)
        with theirs:
            yield ours, theirs


@contextmanager
def relayed(
    spending: RunSpending, number: int, plan: UpstreamPlan
) -> Iterator[tuple[socket.socket, socket.socket]]:
    with connection() as (ours, theirs), spending.dialling(number, plan):
        end = spending.relay(number, plan, ours)
        end.settimeout(30)
        with end:
            yield end, theirs


def take(end: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count and (piece := end.recv(count - len(got))):
        got += piece
    return got


@pytest.mark.promise("2.7")
def test_all_bytes_pass_and_are_counted() -> None:
    """In both directions at once, more than any buffer; what was sent is counted by itself."""
    spending, plan = RunSpending(), upstream(8 << 20, 8 << 20)
    number = next(spending.numbers)
    with relayed(spending, number, plan) as (end, theirs):
        assert end.family == socket.AF_UNIX
        for source, sink in ((end, theirs), (theirs, end)):
            for _ in range(64):
                source.sendall(b"x" * (1 << 14))
                assert take(sink, 1 << 14) == b"x" * (1 << 14)
        theirs.shutdown(socket.SHUT_WR)
        assert end.recv(1) == b""
        end.sendall(b"more")
        assert take(theirs, 4) == b"more"
        end.close()
        assert theirs.recv(1) == b""
    assert spending.spent_bytes(HOST) == DIAL_BYTES + (2 << 20) + 4
    assert spending.sent_bytes(number) == {HOST: (1 << 20) + 4}


@pytest.mark.promise("2.7")
@pytest.mark.parametrize("is_sent", [True, False])
def test_a_budget_ends_a_connection_to_the_byte(is_sent: bool) -> None:
    """Whatever a gateway does: not one byte more passes, both sides see its end."""
    spending, plan = RunSpending(), upstream(DIAL_BYTES + 1000, 1 << 20)
    number = next(spending.numbers)
    with relayed(spending, number, plan) as (end, theirs):
        source, sink = (end, theirs) if is_sent else (theirs, end)
        source.sendall(b"x" * 1001)
        assert take(sink, 2000) == b"x" * 1000
        with pytest.raises(OSError, match=r"."):
            end.send(b"")
    assert spending.spent_bytes(HOST) == plan.budget_bytes


@pytest.mark.promise("2.7")
def test_a_run_has_its_budget_over_all_ranges() -> None:
    """To the byte, whichever range uses it; also after a range's end."""
    spending, plan = RunSpending(), upstream(10_000, 16_000)
    first, second, last = (next(spending.numbers) for _ in range(3))
    with relayed(spending, first, plan) as (end, theirs):
        end.sendall(b"x" * 8000)
        assert len(take(theirs, 8000)) == 8000
        spending.close(first)
        assert (end.recv(1), theirs.recv(1)) == (b"", b"")
    left = plan.run_budget_bytes - spending.spent_bytes(HOST) - DIAL_BYTES
    with relayed(spending, second, plan) as (end, theirs):
        end.sendall(b"x" * (left + 1))
        assert len(take(theirs, left + 1)) == left < plan.budget_bytes - DIAL_BYTES
        with pytest.raises(OSError, match=r"."):
            end.send(b"")
    assert spending.spent_bytes(HOST) == plan.run_budget_bytes
    with pytest.raises(NotDialledError, match="the run"), spending.dialling(last, plan):
        pass


@pytest.mark.promise("2.7")
def test_so_many_connections_are_open_at_a_time() -> None:
    """Each costs the owner a thread: a gateway that is not ours can't have as many as it likes."""
    spending, plan = RunSpending(), upstream(1 << 20, 4 << 20)
    with ExitStack() as held:
        for _ in range(MAX_OPEN):
            ours, _theirs = held.enter_context(connection())
            with spending.dialling(1, plan):
                held.enter_context(spending.relay(1, plan, ours))
        with pytest.raises(NotDialledError), spending.dialling(1, plan):
            pass
        with spending.dialling(2, plan):
            pass


@pytest.mark.promise("2.7")
@given(
    st.integers(DIAL_BYTES, 5000), st.integers(0, 20_000), st.lists(st.integers(0, 4), max_size=60)
)
def test_no_order_of_dials_spends_more_than_a_budget(
    budget: int, more: int, dials: list[int]
) -> None:
    """Neither a range's nor the run's; a refusal costs nothing, and another host has its own."""
    spending, plan = RunSpending(), upstream(budget, budget + more)
    numbers = [next(spending.numbers) for _ in range(5)]
    cost = 0
    by_range = dict.fromkeys(numbers, 0)
    for which in dials:
        with contextlib.suppress(NotDialledError), spending.dialling(numbers[which], plan):
            cost += DIAL_BYTES
            by_range[numbers[which]] += DIAL_BYTES
    assert spending.spent_bytes(HOST) == cost <= budget + more
    assert max(by_range.values()) <= budget
    with spending.dialling(numbers[0], upstream(budget, budget, "other.example")):
        pass
