"""The ledger against what really happens: a process killed at any moment, a disk that is full."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from belljar.ledger.verification import Status, verify

WRITER = """
import sys, hashlib
from pathlib import Path
from belljar.events import Body, Event, Kind
from belljar.ledger.rundir import RunDirectory

with RunDirectory(Path(sys.argv[1]), "exec", ["x"]) as run:
    acknowledged = sys.stdout
    for index in range(10**9):
        content = b"%d" % index * (index % 50)
        bodies = (Body(name="frame", content=content, total_bytes=len(content), sha256=hashlib.sha256(content).hexdigest()),)
        bodies = bodies if index % 3 == 0 else ()
        number = run.recorder.record(Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": "x" * (index % 400)}, bodies=bodies))
        acknowledged.write(f"{number}\\n")
        acknowledged.flush()
"""

UNTIL_FULL = """
import sys
from pathlib import Path
from belljar.errors import LedgerError
from belljar.events import Body, Event, Kind
from belljar.ledger.rundir import RunDirectory
try:
    with RunDirectory(Path(sys.argv[1]), "exec", ["x"]) as run:
        print(run.path, flush=True)
        for index in range(10**6):
            run.recorder.record(Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": "x" * 1000}))
except LedgerError as error:
    print(error.what)
    try:
        run.recorder.record(Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": "after"}))
    except LedgerError:
        print("refused")
"""


def _run_dir(home: Path) -> Path:
    (path,) = (home / "runs").iterdir()
    return path


@pytest.mark.promise("5.1")
@pytest.mark.slow
@pytest.mark.parametrize("kill_number", [0, 3, 6, 9, 12])
def test_sigkill_loses_at_most_the_event_being_written(tmp_path: Path, kill_number: int) -> None:
    """It verifies as unfinished, with every event whose `record` returned."""
    acknowledged = tmp_path / "acknowledged"
    with acknowledged.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=out)
        try:
            deadline = time.monotonic() + 30
            while (
                not acknowledged.stat().st_size
                and process.poll() is None
                and time.monotonic() < deadline
            ):
                time.sleep(0.001)
            # Up to two checkpoints' time, the first kills very early.
            time.sleep(random.Random(kill_number).uniform(0, 0.02 if kill_number < 6 else 1.1))  # noqa: S311
        finally:
            process.kill()
            process.wait()
    assert process.returncode == -signal.SIGKILL
    result = verify(_run_dir(tmp_path))
    assert (result.status, result.problem) == (Status.UNFINISHED, None)
    last = int(acknowledged.read_bytes().split(b"\n")[:-1][-1])
    assert result.events - 1 in {last, last + 1}
    assert not result.ok(strict=True)


@pytest.mark.promise("5.1")
def test_a_full_disk_is_a_ledger_error(tmp_path: Path) -> None:
    """When the kernel takes no more bytes, `record` raises and goes on raising."""
    mount = 'mount -t tmpfs -o size=512k none "$0" && "$@" && cp -a "$0/runs" "$0.copy"'
    home = tmp_path / "store"
    home.mkdir()
    wrapper = ["unshare", "--mount", "sh", "-c", mount, str(home)]
    if os.geteuid() != 0:
        wrapper[1:1] = ["--user", "--map-root-user"]
    argv = [*wrapper, sys.executable, "-c", UNTIL_FULL, str(home)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    path, what, refused = done.stdout.splitlines()
    assert "can't be recorded" in what
    assert "space" in what or "full" in what
    assert refused == "refused"
    copied = tmp_path / "store.copy" / Path(path).name
    result = verify(copied)
    assert (result.status, result.problem) == (Status.UNFINISHED, None)
    assert result.events > 100
