"""Lines on standard error, such as reports of slow operations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

# Sooner, and a line that is gone at once would only flicker.
SLOW_S: Final = 2.0
FIRST_CELL: Final = "making what cells of this image share, once: up to half a minute"
LOADING: Final = "loading Inspect, which takes some seconds"


@contextmanager
def reported_if_slow(text: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    import threading

    options = {"file": sys.stderr, "flush": True}
    timer = threading.Timer(SLOW_S, print, (f"belljar: {text}",), options)
    timer.daemon = True  # it must not keep a failed process alive
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_status(text: str) -> None:
    # A closed or full standard error (ValueError: closed in this process) must not end the work.
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
