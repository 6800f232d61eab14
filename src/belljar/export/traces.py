"""Exports the traces of a run while it lasts, in a process of its own: no collector slows it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from belljar.errors import HostError, PolicyError
from belljar.units import printable

SEND_TIMEOUT_S: Final = 5.0  # of one request; a collector that hangs is tried again
GRACE_S: Final = 5.0  # after the run's end, for what is left
_EXIT_TIMEOUT_S: Final = GRACE_S + 2 * SEND_TIMEOUT_S  # a collector may answer byte by byte


class TraceExport:
    """`belljar export --endpoint` of the run that `start` names, until `finish` is called.

    Raises `PolicyError`, `HostError` when it is made, and nothing later: `report` gets one line at
    the end.
    """

    _process: subprocess.Popen[bytes] | None = None

    def __init__(self, endpoint: str, report: Callable[[str], None]) -> None:
        try:
            parts = urlsplit(endpoint)
            self.host, self.place = parts.hostname or "", f"{parts.hostname}:{parts.port or ''}"
        except ValueError:
            self.host = ""
        if not self.host or parts.scheme not in {"http", "https"}:
            raise PolicyError(
                "not the address of a collector",
                where="--otlp",
                hint="as in http://127.0.0.1:4318/v1/traces",
            )
        try:
            found = find_spec("opentelemetry.exporter.otlp.proto.http")
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise HostError(
                "OpenTelemetry is not installed", hint="install Belljar with the extra `otel`"
            )
        self._endpoint, self._report = endpoint, report
        self._run = Path()

    def start(self, run_dir: Path) -> None:
        """Begin with this run's first event."""
        words = ["export", str(run_dir), "--format", "otlp", "--endpoint"]
        self._run = run_dir
        with suppress(OSError):  # reported at the end
            self._process = subprocess.Popen(
                [sys.executable, "-m", "belljar", *words, self._endpoint],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is not for it: it sends what there was
            )

    def finish(self) -> None:
        """Wait a bounded time for the rest, and report what was lost."""
        if self._run == Path():
            return  # No run began.
        result = b""
        if self._process is not None:
            try:
                result = self._process.communicate(timeout=_EXIT_TIMEOUT_S)[0]
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                self._process.kill()
                self._process.communicate()
        text = result.decode().strip() or "the collector took them in part or not at all"
        again = f"belljar export {self._run.name} --format otlp --endpoint URL"
        is_whole = self._process is not None and self._process.returncode == 0
        hint = "" if is_whole else f"; `{again}` sends all of them"
        self._report(f"belljar: traces to {printable(self.place)}: {printable(text)}{hint}")
