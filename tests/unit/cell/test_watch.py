"""What the host sees of limits while an operation runs: what grew, and a disk that was full in
between."""

from __future__ import annotations

from typing import cast

from tests.fakes.vm import FakeVm

from belljar.cell.record import LimitWatch
from belljar.channel import GuestClient


def live() -> FakeVm:
    """A cell whose counts the test sets."""
    return FakeVm(cast(GuestClient, None))


def test_nothing_fired() -> None:
    """Counts from before the operation are not its own, nor is a disk that was full already."""
    vm = live()
    vm.oom_count, vm.fork_count, vm.full = 3, 4, True
    watch = LimitWatch(vm)
    watch.look()
    assert watch.hit() == ()


def test_what_grew_is_named() -> None:
    """A kill for memory and a refused fork."""
    vm = live()
    watch = LimitWatch(vm)
    vm.oom_count, vm.fork_count = 1, 70
    assert watch.hit() == ("memory", "processes")


def test_a_disk_that_was_emptied_again() -> None:
    """Seen full once, it was full."""
    vm = live()
    watch = LimitWatch(vm)
    vm.full = True
    watch.look()
    vm.full = False
    assert watch.hit() == ("disk",)


def test_a_crowd_that_dispersed() -> None:
    """As many processes as may be, once, is the limit reached."""
    vm = live()
    watch = LimitWatch(vm)
    vm.crowded = True
    watch.look()
    vm.crowded = False
    assert watch.hit() == ("processes",)
