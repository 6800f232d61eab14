"""The wire as its owner sees it: two ends of a cell are one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio.lowlevel
import pytest

from belljar.errors import CellError
from belljar.isolation.microvm import vmm as wires
from belljar.isolation.microvm.vmm import Vmm
from belljar.isolation.sandbox import Sandbox
from belljar.isolation.survivors import Destruction, together


def destruction(
    survivors: tuple[str, ...] = (),
    unproven: tuple[str, ...] = (),
    looked: tuple[str, ...] = ("a", "b"),
) -> Destruction:
    return Destruction(
        survivors=survivors,
        looked_for=looked,
        duration_ms=1.0,
        not_checked=unproven,
        unproven=unproven,
    )


def test_two_destructions_as_one() -> None:
    """Clean only if both are; looked for only what could be looked for in both."""
    clean, hidden = destruction(), "a: hidden"
    assert together(clean, clean).clean
    assert together(clean, clean).looked_for == ("a", "b")
    assert together(clean, clean).duration_ms == 2.0
    for pair in ((clean, destruction(("p",))), (destruction(("p",)), clean)):
        assert (together(*pair).clean, together(*pair).survivors) == (False, ("p",))
    unproven = destruction(unproven=(hidden,), looked=("b",))
    for pair in ((clean, destruction(unproven=(hidden,))), (unproven, clean)):
        found = together(*pair)
        assert (found.clean, found.looked_for, found.not_checked) == (False, ("b",), (hidden,))


@pytest.mark.promise("6.1")
@pytest.mark.anyio
@pytest.mark.parametrize("is_proven", [True, False])
async def test_a_wire_that_did_not_start_counts_for_its_vm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_proven: bool
) -> None:
    """What is left of it is left of the cell; one that failed proves nothing of either."""
    vmm: Any = Vmm.__new__(Vmm)
    port: Any = None
    vmm.client = SimpleNamespace(aclose=anyio.lowlevel.checkpoint)
    vmm.companions, vmm.wire = AsyncExitStack(), None
    monkeypatch.setattr(wires, "Wire", lambda *_: NoWire(is_proven=is_proven))

    async def unmake(_: Sandbox) -> Destruction:
        return destruction()

    monkeypatch.setattr(Sandbox, "unmake", unmake)
    with pytest.raises((CellError, OSError)):
        await wires.start_wire(vmm, port, home=tmp_path)
    found = await vmm.unmake()
    assert found.survivors == (("wire",) if is_proven else ())
    assert [each.partition(":")[0] for each in found.unproven] == (
        [] if is_proven else ["the wire"]
    )
    assert not found.clean


class NoWire:
    """One that can't start, and leaves a process when it is destroyed, if that is proven."""

    destruction: Destruction | None = None

    def __init__(self, *, is_proven: bool) -> None:
        self.is_proven = is_proven

    async def start(self) -> None:
        raise CellError("no link")

    async def _destroy(self) -> None:
        if not self.is_proven:
            raise OSError("it can't be looked at")
        self.destruction = destruction(survivors=("wire",))
