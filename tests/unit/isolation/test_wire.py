"""The wire as its owner sees it: two ends of a cell are one, a guest's modules are those that it
needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.image.kernel import REQUIRED_MODULES, Kernel
from belljar.isolation.survivors import Destruction, NotChecked, together


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
