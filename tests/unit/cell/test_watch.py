"""What the host sees of limits while an operation runs: what grew, and a disk that was full in
between."""

from __future__ import annotations

from typing import cast

import pytest
from tests.fakes.vm import FakeVm

from belljar.cell.record import LimitWatch
from belljar.channel import GuestClient


def test_what_was_there_before_is_not_the_operations() -> None:
    """Neither counts nor a disk that was full already."""
    vm = FakeVm(cast(GuestClient, None))
    vm.oom_count, vm.fork_count, vm.full = 3, 4, True
    watch = LimitWatch(vm)
    watch.look()
    assert watch.hit() == ()


@pytest.mark.parametrize(
    ("field", "meanwhile", "after", "limit"),
    [
        ("oom_count", 1, 1, "memory"),
        ("fork_count", 70, 70, "processes"),
        ("full", True, False, "disk"),
        ("crowded", True, False, "processes"),
    ],
)
def test_what_fired_is_named(field: str, meanwhile: int, after: int, limit: str) -> None:
    """Also a disk that was emptied again, and a crowd that dispersed."""
    vm = FakeVm(cast(GuestClient, None))
    watch = LimitWatch(vm)
    setattr(vm, field, meanwhile)
    watch.look()
    setattr(vm, field, after)
    assert watch.hit() == (limit,)
