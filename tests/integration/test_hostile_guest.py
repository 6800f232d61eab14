"""A guest that breaks the protocol in the middle of a command, in a real cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.channel.operations import SocketPipe
from belljar.errors import CellError
from belljar.ledger.listing import read_events
from belljar.ledger.verification import verify

pytestmark = [pytest.mark.anyio, pytest.mark.vm]

# Output of a command that is not there.
FORGERY = b"\x02\0\0\0\x12\0\0\0\xff\xff\0\0\x01x"


@pytest.mark.promise("7.2")
@pytest.mark.thorough_in("trio")
async def test_a_malformed_frame_ends_the_cell(
    vm_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call ends with the cell's error; it is destroyed, and the record verifies."""
    received = SocketPipe.receive
    hostile = False

    async def receive(self: SocketPipe, max_bytes: int = 65536) -> bytes:
        return FORGERY if hostile else await received(self, max_bytes)

    monkeypatch.setattr(SocketPipe, "receive", receive)
    with start_run("exec", None, ["hostile"], home=vm_home) as run:
        async with open_cell("high", run=run, home=vm_home) as cell:
            assert (await cell.exec(["true"])).returncode == 0
            hostile = True
            with pytest.raises(CellError, match="the cell died") as first:
                await cell.exec(["true"])
            with pytest.raises(CellError) as second:
                await cell.exec(["true"])
            assert second.value is first.value
        assert cell.destruction is not None
        assert cell.destruction.clean
    kinds = [str(line.kind) for line in read_events(run.path)]
    assert kinds.count("protocol.violation") == 1
    assert "cell.destroyed" in kinds
    assert verify(run.path).ok(strict=True)
