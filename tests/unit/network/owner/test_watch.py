"""The thread that watches over a range."""

from __future__ import annotations

import os
import socket
from unittest.mock import Mock, patch

import pytest

from belljar.errors import BelljarError, CellError
from belljar.network.owner.processes import Child
from belljar.network.owner.range_state import RangeProcesses, RangeState
from belljar.network.owner.watch import RangeWatch


def watched(problem: Exception) -> BelljarError | None:
    """What a range died of, of whose upstream connections a look raises `problem` once."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    pipes = [os.pipe() for _ in range(3)]
    children = [Mock(spec=Child, pidfd=read) for read, _ in pipes[:2]]
    processes = RangeProcesses(
        supervisor=children[0],
        gateway=children[1],
        control=pairs[0][0],
        events=pairs[1][0],
        stderr=pipes[2][0],
        fork_server=Mock(how_ended=lambda _: ""),
    )

    def end_all() -> None:
        for _, other in pairs:
            other.close()
        for _, write in pipes:
            os.close(write)

    def look(_: object) -> None:
        watch.closing = True
        end_all()
        raise problem

    died: list[BelljarError] = []
    watch = RangeWatch(
        "range",
        processes,
        RangeState(),
        Mock(),
        on_failure=died.append,
        handle_request=None,
        dialler=Mock(enforce=look),
        max_recorded_bytes=1 << 20,
        timeout_s=60,
    )
    with patch("belljar.network.owner.watch.POLL_INTERVAL_S", 0.01):
        watch.start()
        watch.join()
    for ours, _ in pairs:
        ours.close()
    for read, _ in pipes:
        os.close(read)
    return died[0] if died else None


@pytest.mark.parametrize("problem", [ValueError("a digit"), OSError("no TCP socket")])
def test_a_look_that_fails_ends_the_range(problem: Exception) -> None:
    """Budgets and times of upstreams would not be kept any more: that is never passed over."""
    assert isinstance(watched(problem), CellError)
