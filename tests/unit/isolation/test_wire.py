"""The wire as its owner sees it: two ends of a cell are one, a guest's modules are those that it
needs."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio.lowlevel
import pytest

from belljar.errors import CellError, HostError
from belljar.image.kernel import NIC_MODULES, REQUIRED_MODULES, Kernel
from belljar.isolation.microvm import wire as wires
from belljar.isolation.microvm.guest_files import read_guest_parts
from belljar.isolation.microvm.vmm import Vmm
from belljar.isolation.sandbox import Sandbox
from belljar.isolation.survivors import Destruction, NotChecked, together
from belljar.store.journal import JournalEntry, new_cell_id, own_entry


def destruction(
    survivors: tuple[str, ...] = (),
    unproven: tuple[NotChecked, ...] = (),
    looked: tuple[str, ...] = ("a", "b"),
) -> Destruction:
    """One that took a millisecond."""
    return Destruction(
        survivors=survivors,
        looked_for=looked,
        duration_ms=1.0,
        not_checked=unproven,
        unproven=unproven,
    )


def test_two_destructions_as_one() -> None:
    """Clean only if both are; nothing counts as looked for that could not be looked for in
    either."""
    clean, hidden = destruction(), NotChecked("a", "hidden")
    assert together(clean, clean).clean
    assert together(clean, clean).looked_for == ("a", "b")
    assert together(clean, clean).duration_ms == 2.0
    for survivor in (
        together(clean, destruction(survivors=("p",))),
        together(destruction(survivors=("p",)), clean),
    ):
        assert (survivor.clean, survivor.survivors) == (False, ("p",))
    for unproven in (
        together(clean, destruction(unproven=(hidden,))),
        together(destruction(unproven=(hidden,), looked=("b",)), clean),
    ):
        assert (unproven.clean, unproven.looked_for, unproven.not_checked) == (
            False,
            ("b",),
            (hidden,),
        )


class NoWire:
    """One that can't start, and leaves a process when it is destroyed."""

    destruction: Destruction | None = None

    async def start(self) -> None:
        """Fails."""
        raise CellError("no link")

    async def _destroy(self) -> None:
        self.destruction = destruction(survivors=("wire",))


@pytest.mark.anyio
async def test_a_wire_that_did_not_start_counts_for_its_vm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is left of it is left of the cell."""
    vmm: Any = Vmm.__new__(Vmm)
    port: Any = SimpleNamespace(settings=SimpleNamespace(mtu=1500))
    vmm.client, vmm.companions, vmm.wire = (
        SimpleNamespace(aclose=anyio.lowlevel.checkpoint),
        AsyncExitStack(),
        None,
    )
    monkeypatch.setattr(wires, "Wire", lambda *_: NoWire())

    async def unmake(_: Sandbox) -> Destruction:
        return destruction()

    monkeypatch.setattr(Sandbox, "unmake", unmake)
    with pytest.raises(CellError, match="no link"):
        await wires.start_wire(vmm, port, home=tmp_path)
    assert (await vmm.unmake()).survivors == ("wire",)


def test_the_journal_knows_a_wire() -> None:
    """Its entry is read back as it was written: whoever reaps finds what an owner that was killed
    has left of it."""
    entry = own_entry(new_cell_id(), "wire", host_uid=7)
    assert JournalEntry.from_json(entry.to_json()) == entry


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """With files for all modules, and what stands for a package's programs beside it."""
    modules = []
    for number, name in enumerate(
        ("virtio_mmio", "squashfs", "failover", "net_failover", "virtio_net")
    ):
        modules.append(tmp_path / f"{number:02d}-{name}.ko")
        modules[-1].write_bytes(b"\x7fELF" + name.encode())
    return Kernel(
        digest="d" * 64,
        version="6.12",
        package="p",
        package_sha256="s",
        vmlinuz=tmp_path / "vmlinuz",
        modules=tuple(modules),
        config=tmp_path / "config",
        wanted=REQUIRED_MODULES,
    )


def test_only_a_guest_with_a_device_has_its_driver(kernel: Kernel) -> None:
    """The others boot what they always did, no slower; the two are told apart by the digest that
    goes into a template's key."""
    without, with_nic = read_guest_parts(kernel), read_guest_parts(kernel, nic=True)
    assert [name for name, _ in without.modules] == ["virtio_mmio", "squashfs"]
    assert [name for name, _ in with_nic.modules][2:] == ["failover", "net_failover", "virtio_net"]
    assert {name for name, _ in with_nic.modules[2:]} <= NIC_MODULES
    assert without.digest != with_nic.digest


def test_a_kernel_that_was_fetched_without_the_driver(kernel: Kernel) -> None:
    """It still carries cells without a network; one with says how to fix it, before anything is
    made."""
    kernel = replace(kernel, wanted=REQUIRED_MODULES[:-1])
    assert read_guest_parts(kernel).modules
    with pytest.raises(HostError, match="network driver") as caught:
        read_guest_parts(kernel, nic=True)
    assert "belljar setup" in caught.value.hint
