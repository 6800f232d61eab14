"""What a run spends on a real upstream: counted by the kernel, bounded for a range and for the
run."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.owner.budget import AHEAD_BYTES, MAX_OPEN_S, RunSpending, SpentError, measure
from belljar.plan.network import DIAL_BYTES, UpstreamPlan

HOST = "real.example"


def upstream(budget: int, run: int, host: str = HOST) -> UpstreamPlan:
    """With these budgets."""
    return UpstreamPlan(
        host=host,
        ports=(443,),
        methods=("GET",),
        budget_bytes=budget,
        run_budget_bytes=run,
        reason="for a test",
    )


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ours, and the other side's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        theirs, _ = server.accept()
        with theirs:
            yield ours, theirs


def exchange(ours: socket.socket, theirs: socket.socket, sent: int, received: int) -> None:
    """So many bytes each way, all of them read and acknowledged."""
    for source, sink, count in ((ours, theirs, sent), (theirs, ours, received)):
        source.sendall(b"x" * count)
        while count:
            count -= len(sink.recv(count))


def dial(
    spending: RunSpending, number: int, plan: UpstreamPlan, end: socket.socket | None = None
) -> None:
    """One dial of a range; with a connection it is handed over."""
    with spending.dialling(number, plan):
        if end is not None:
            spending.keep(number, plan, end)


def test_the_kernel_counts_what_passed() -> None:
    """In both directions, whichever process holds the connection; one that its gateway has ended is
    settled, and still counts."""
    spending, plan = RunSpending(), upstream(1 << 20, 1 << 20)
    number = spending.new_range()
    with connection() as (ours, theirs):
        dial(spending, number, plan, ours)
        exchange(ours, theirs, 1000, 2000)
        assert 3000 <= spending.spent_bytes(HOST) - DIAL_BYTES <= 3002
        assert measure(ours)[0]
        ours.shutdown(socket.SHUT_RDWR)
        assert spending.enforce(number) == ()
        assert 3000 <= spending.spent_bytes(HOST) - DIAL_BYTES <= 3004
        assert spending.sent_bytes(number) == {HOST: 1000}
    spending.close(number)


def test_a_range_has_its_budget_and_no_more() -> None:
    """Dials alone use it up; another range, and another host, has its own."""
    spending, plan = RunSpending(), upstream(3 * DIAL_BYTES, 1 << 20)
    first, second = spending.new_range(), spending.new_range()
    for _ in range(3):
        dial(spending, first, plan)
    with pytest.raises(SpentError, match="one sample"):
        dial(spending, first, plan)
    dial(spending, second, plan)
    dial(spending, first, upstream(3 * DIAL_BYTES, 1 << 20, "other.example"))
    with spending.dialling(second, plan):
        spending.charge_dial(second, plan)
        with pytest.raises(SpentError):
            spending.charge_dial(second, plan)


@pytest.mark.promise("2.7")
def test_a_run_has_its_budget_over_all_ranges() -> None:
    """Of a range that is using it the whole budget is set aside; of one that is not, what it used;
    also after the range's end."""
    spending, plan = RunSpending(), upstream(10_000, 16_000)
    first, second, third = (spending.new_range() for _ in range(3))
    with connection() as (ours, theirs):
        dial(spending, first, plan, ours)
        with pytest.raises(SpentError, match="the run"):
            dial(spending, second, plan)
        exchange(ours, theirs, 2000, 2000)
        spending.close(first)
        assert theirs.recv(1) == b""
    dial(spending, second, plan)
    spending.close(second)
    with connection() as (ours, theirs):
        dial(spending, third, plan, ours)
        exchange(ours, theirs, 3000, 3000)
        spending.close(third)
    with pytest.raises(SpentError, match="the run"):
        dial(spending, spending.new_range(), plan)


@pytest.mark.promise("2.7")
def test_a_connection_beyond_its_time_is_ended() -> None:
    """However little passes: the other side sees its end, and the reason is reported once."""
    clock = [0.0]
    spending, plan = RunSpending(now=lambda: clock[0]), upstream(1 << 20, 1 << 20)
    number = spending.new_range()
    with connection() as (ours, theirs):
        dial(spending, number, plan, ours)
        clock[0] = MAX_OPEN_S
        assert spending.enforce(number) == ()
        clock[0] = MAX_OPEN_S + 1
        assert [told for _, told in spending.enforce(number)] == [
            f"it was open for {MAX_OPEN_S:.0f} s"
        ]
        assert theirs.recv(1) == b""
        assert spending.enforce(number) == ()


def test_a_connection_far_beyond_its_budget_is_ended() -> None:
    """A gateway of ours ends it to the byte; the owner ends that of one that does not."""
    spending, plan = RunSpending(), upstream(1024, 1 << 20)
    number = spending.new_range()
    with connection() as (ours, theirs):
        dial(spending, number, plan, ours)
        for _ in range(9):
            exchange(ours, theirs, AHEAD_BYTES // 16, AHEAD_BYTES // 16)
        assert [told for _, told in spending.enforce(number)] == ["more passed than its budget"]
        assert theirs.recv(1) == b""


def test_a_range_that_is_over_gets_no_connection() -> None:
    """One that was dialled meanwhile is ended at once."""
    spending, plan = RunSpending(), upstream(1 << 20, 1 << 20)
    number = spending.new_range()
    spending.close(number)
    with connection() as (ours, theirs):
        dial(spending, number, plan, ours)
        assert theirs.recv(1) == b""


@pytest.mark.promise("2.7")
@given(
    st.integers(DIAL_BYTES, 5000),
    st.integers(0, 20_000),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=60),
)
def test_no_order_of_dials_spends_more_than_a_budget(
    budget: int, more: int, dials: list[tuple[int, int]]
) -> None:
    """Neither a range's nor the run's; what was refused cost nothing."""
    spending, plan = RunSpending(), upstream(budget, budget + more)
    numbers = [spending.new_range() for _ in range(5)]
    cost = 0
    by_range = dict.fromkeys(numbers, 0)
    for which, tries in dials:
        try:
            with spending.dialling(numbers[which], plan):
                for number in range(tries):
                    if number:
                        spending.charge_dial(numbers[which], plan)
                    cost += DIAL_BYTES
                    by_range[numbers[which]] += DIAL_BYTES
        except SpentError:
            pass
    assert spending.spent_bytes(HOST) == cost <= budget + more
    assert max(by_range.values()) <= budget
