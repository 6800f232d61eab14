"""The console keeps the end, bounded, and knows a panic."""

from __future__ import annotations

import os

from belljar.isolation.microvm.vmm import MAX_CONSOLE_BYTES, Console


def test_the_end_is_kept() -> None:
    """However much comes over time, the last 64 KiB remain, also after it is closed."""
    console = Console()
    for number in range(40):
        os.write(console.writer, bytes([number]) * 4096)
        console.read()
    os.write(console.writer, b"last")
    console.close()
    assert len(console.read()) == MAX_CONSOLE_BYTES
    assert console.read().endswith(b"last")
    console.close()


def test_a_panic_is_known() -> None:
    """Its reason is shown escaped; other words are no panic."""
    console = Console()
    assert console.panic() == ""
    os.write(
        console.writer,
        b"[ 1.0] Kernel panic - not syncing: Attempted to kill init!\x1b[2J exitcode=0x1\r\nmore",
    )
    assert console.panic().startswith("Attempted to kill init!\\x1b[2J")
    console.close()
