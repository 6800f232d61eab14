"""An operation that is alone."""

from __future__ import annotations

import ctypes
import errno
import os
import time

import pytest
from tests.fakes.guest import EOF, EXITED, NOT_STARTED, RESULT, SIGNALED, STARTED
from tests.fakes.raw_host import EXEC, Ended, Wire, exec_body
from tests.integration.test_agent_contained import BOMB, RENAMED, SCRIPTS, Box, box
from tests.integration.test_agent_native import fresh, wire, with_probe

__all__ = ["box", "fresh", "wire"]
WITH_INPUT, PROBE, ALONE, PTRACE_SEIZE = 1, 4, 8, 0x4206
LEFT = "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!"


def alone(wire: Wire) -> Ended:
    """The probe program with nothing beside it, to its end."""
    return wire.finish(wire.start(EXEC, exec_body(["p", "--no-such-probe"], flags=PROBE | ALONE)))


@pytest.mark.promise("7.3")
@with_probe
def test_nothing_starts_beside_it(wire: Wire, fresh: Wire) -> None:
    """Every other operation is refused meanwhile; only the probe program can be alone."""
    held = wire.start(EXEC, exec_body(["p", "quick"], flags=PROBE | ALONE | WITH_INPUT))
    wire.expect(STARTED)
    for body in (exec_body(["true"]), exec_body(["p"], flags=PROBE | ALONE)):
        ended = wire.finish(wire.start(EXEC, body))
        found = (ended.types, ended.outcome, ended.flags, ended.code)
        assert found == ([RESULT], NOT_STARTED, 0, errno.EAGAIN)
    wire.send(EOF, held, b"\0")
    assert wire.finish(held).outcome == EXITED
    assert wire.run("true").outcome == EXITED
    ended = wire.finish(wire.start(EXEC, exec_body(["true"], flags=ALONE)))
    assert (ended.outcome, ended.stage, ended.code) == (NOT_STARTED, 9, errno.EINVAL)


@pytest.mark.promise("7.3")
@pytest.mark.root
@with_probe
def test_it_is_alone_or_not_started(wire: Wire, fresh: Wire) -> None:
    """A process that is not seen to be gone (its tracer, who is outside, keeps it)."""
    pid = int(wire.run(LEFT).output[1])
    assert ctypes.CDLL(None).ptrace(PTRACE_SEIZE, pid, 0, 0) == 0
    began = time.monotonic()
    ended = alone(wire)
    assert (ended.types, ended.outcome, ended.code) == ([RESULT], NOT_STARTED, errno.EBUSY)
    assert time.monotonic() - began < 60
    os.waitpid(pid, 0)
    assert alone(wire).outcome == EXITED


@pytest.mark.root
@pytest.mark.parametrize(
    "script",
    [SCRIPTS["daemon"], SCRIPTS["stopped"], RENAMED, BOMB],
    ids=["daemon", "stopped", "renamed", "bomb"],
)
def test_every_other_tree_is_ended(box: Box, script: str) -> None:
    """Daemons, the stopped, the renamed, the bomb, the left behind: gone when it starts."""
    box.sh(LEFT)
    argv = ["python3", "-c", script] if script in (RENAMED, BOMB) else ["sh", "-c", script]
    other = box.wire.start(EXEC, exec_body(argv, user="nobody"))
    box.wire.expect(STARTED)
    while len(box.others()) < 3:
        pass
    this = box.wire.start(EXEC, exec_body(["p", "--no-such-probe"], flags=PROBE | ALONE))
    ended = {other: Ended(), this: Ended()}
    box.wire.finish_all(ended)
    assert (ended[other].outcome, ended[other].code, ended[this].outcome) == (SIGNALED, 9, EXITED)
    assert box.others() == []
