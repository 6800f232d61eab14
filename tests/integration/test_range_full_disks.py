"""A range whose run's disk is full, at its start and later: which file, what to do, and nothing is
left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration import test_range_faults as faults
from tests.integration.remains import below
from tests.integration.test_tier_faults import Host

pytestmark = [pytest.mark.vm, pytest.mark.root]
host, policy = faults.host, faults.policy


@pytest.fixture
def small_runs(home: Path) -> Iterator[Callable[[str], None]]:
    """Puts the run directories on a file system of that size."""
    runs = home / "runs"
    runs.mkdir(exist_ok=True)
    mounted: list[str] = []

    def mount(options: str) -> None:
        mounted.append(options)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"mode=755,{options}", "none", str(runs)], check=True
        )

    yield mount
    for _ in mounted:
        subprocess.run(["umount", str(runs)], check=True)


@pytest.mark.parametrize("inodes", [5, 8, 11, 13])
def test_a_disk_that_is_full_at_the_start(
    inodes: int, host: Host, policy: Callable[..., str], small_runs: Callable[[str], None]
) -> None:
    """Whatever file of the run the disk has no room for, it is said which, and what helps."""
    small_runs(f"size=4m,nr_inodes={inodes}")
    ran = host.run("exec", policy(), "--", *faults.FETCH)
    said = ran.stderr.decode()
    assert ran.returncode in (3, 5), said
    assert "Traceback" not in said
    assert "No space left on device" in said
    assert "\n  hint: " in said
    assert (host.belljar.leftovers(), list(below(os.getpid()))) == ([], [])
    verified = host.belljar("ledger", "verify", str(host.belljar.runs()[-1]))
    assert verified.returncode == 0, verified.stdout + verified.stderr


_FILLING = """\
import subprocess, sys
import anyio
from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.errors import BelljarError
from belljar.policy.load import load_policy

async def main():
    with start_run("exec", None, []) as run:
        ranges = run.path / "ranges"
        ranges.mkdir(mode=0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", sys.argv[2], "none", str(ranges)], check=True)
        try:
            async with open_cell(load_policy(sys.argv[1]), run=run) as cell:
                await cell.exec(["sh", "-c", "while curl -s http://shop.example/; do :; done; sleep 600"])
        except BelljarError as error:
            print(error.exit_code, error)
        finally:
            subprocess.run(["umount", str(ranges)], check=True)
    print(run.path)

anyio.run(main)
"""


@pytest.fixture
def with_small_record(host: Host, policy: Callable[..., str]) -> Callable[[str], str]:
    """Fetches a large page for ever in a range whose packet record is on a disk of its own with
    these options; what is told. Nothing is left."""

    def run(options: str) -> str:
        before = len(host.belljar.runs())
        page = (
            "    site: {kind: http, names: [shop.example], routes: [{path: /, body:"
            f" {'x' * 20_000}}}]}}\n"
        )
        argv = [sys.executable, "-c", _FILLING, policy(page), options]
        environment = host.belljar.environment(TMPDIR=str(host.scratch))
        ran = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert ran.returncode == 0, ran.stderr
        faults.told_and_gone(host, ran.stdout, before)
        return ran.stdout

    return run


@pytest.mark.parametrize("inodes", [1, 2])
def test_no_room_for_a_packet_record(
    inodes: int, with_small_record: Callable[[str], str], host: Host
) -> None:
    """Its directory, and its file: nothing was made for a cell."""
    said = with_small_record(f"size=128k,nr_inodes={inodes}")
    assert said.startswith("3 ")
    assert "the packet record can't be made: No space left on device" in said
    assert not {"cell.starting", "range.opened"} & {
        event["kind"] for event in host.belljar.events(host.belljar.runs()[-1])
    }


def test_a_packet_record_that_fills_its_disk(
    with_small_record: Callable[[str], str], host: Host
) -> None:
    """When the packet record can't go on the range ends, and the message says what is full."""
    said = with_small_record("size=128k")
    assert "the range's supervisor gave up: the packet record: No space left on device" in said
    assert said.startswith("5 range r-")
    assert "range.failed" in {
        event["kind"] for event in host.belljar.events(host.belljar.runs()[-1])
    }
