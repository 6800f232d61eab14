"""Runs to verify, and to tamper with."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from belljar.dataclass import replace
from belljar.events import Actor, Body, Event, JsonValue, Kind, Trust
from belljar.ledger.keys import SigningKey, load_or_make_key
from belljar.ledger.rundir import RunDirectory


def body(name: str, content: bytes, *, dropped: int = 0) -> Body:
    """A body; with `dropped`, one of which the host kept only the first part."""
    return Body(
        name=name,
        content=content,
        total_bytes=len(content) + dropped,
        sha256=hashlib.sha256(content + bytes(dropped)).hexdigest(),
    )


def exec_events(op: int) -> list[Event]:
    started: dict[str, JsonValue] = {"op": op, "argv": ["sh", "-c", f"echo {op} ü"], "cwd": "/"}
    started |= {"user": "agent", "env_names": ["PATH"], "stdin": False, "timeout_s": 1.5}
    completed: dict[str, JsonValue] = {"op": op, "status": "exited", "code": 0, "duration_ms": 3.25}
    completed |= {"stdout_bytes": 5, "stdout_dropped_bytes": 0}
    completed |= {"stderr_bytes": 0, "stderr_dropped_bytes": 0}
    bodies = (body("stdout", b"output %d" % op), body("stderr", b"first part", dropped=7))
    begin = Event(kind=Kind.EXEC_STARTED, cell_id="c1", actor=Actor.HARNESS, data=started)
    end = Event(kind=Kind.EXEC_COMPLETED, cell_id="c1", actor=Actor.GUEST, data=completed)
    return [begin, replace(end, trust=Trust.GUEST_REPORTED, bodies=bodies)]


def wait_until(met: Callable[[], bool], *, what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not met():
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {timeout_s} s")
        time.sleep(0.002)


def signed_events(run_dir: Path) -> int:
    lines = (run_dir / "checkpoints.jsonl").read_bytes().split(b"\n")[:-1]
    return int(json.loads(lines[-1])["size"]) if lines else 0


def record_signed(run: RunDirectory, events: list[Event]) -> None:
    for event in events:
        run.recorder.record(event)
    wait_until(lambda: signed_events(run.path) == run.recorder.events, what="a checkpoint")


def make_run(home: Path) -> Path:
    """A finished run: 12 events, several checkpoints, bodies, a policy, an Inspect log."""
    with (
        patch("belljar.ledger.writer.CHECKPOINT_INTERVAL_S", 0.001),
        RunDirectory(home, "exec", ["run", "x"]) as run,
    ):
        run.write_text("policy.yaml", "belljar: 1\n")
        (run.inspect_log_dir / "log.eval").write_bytes(b"log")
        for op in range(1, 6):
            record_signed(run, exec_events(op))
    return run.path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def key(home: Path) -> SigningKey:
    return load_or_make_key(home)


@pytest.fixture
def finished(home: Path) -> Path:
    return make_run(home)
