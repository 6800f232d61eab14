"""The ledger against what really happens: a process killed at any moment, a disk that is full."""

from __future__ import annotations

import hashlib
import json
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
from belljar.ledger.rundir import create_run

with create_run(Path(sys.argv[1]), "exec", ["x"]) as run:
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
from belljar.ledger.rundir import create_run
{prepare}
try:
    with create_run(Path(sys.argv[1]), "exec", ["x"]) as run:
        print(run.path, flush=True)
        for index in range(10**6):
            run.recorder.record(Event(kind=Kind.PROTOCOL_VIOLATION, data={{"reason": "x" * 1000}}))
except LedgerError as error:
    print(error.what)
    try:
        run.recorder.record(Event(kind=Kind.PROTOCOL_VIOLATION, data={{"reason": "after"}}))
    except LedgerError:
        print("refused")
"""


def _run_dir(home: Path) -> Path:
    (path,) = (home / "runs").iterdir()
    return path


@pytest.mark.promise("5.1")
@pytest.mark.slow
@pytest.mark.parametrize(
    "kill_number",
    [*range(0, 24, 3), *(pytest.param(n, marks=pytest.mark.thorough) for n in range(24) if n % 3)],
)
def test_sigkill_loses_at_most_the_event_being_written(tmp_path: Path, kill_number: int) -> None:
    """Killed at a random moment, the run verifies as unfinished, and every event whose `record`
    returned is in it."""
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
            time.sleep(random.Random(kill_number).uniform(0, 0.02 if kill_number < 6 else 1.2))  # noqa: S311
        finally:
            process.kill()
            process.wait()
    assert process.returncode == -signal.SIGKILL
    result = verify(_run_dir(tmp_path))
    assert (result.status, result.problem) == (Status.UNFINISHED, None)
    last = int(acknowledged.read_bytes().split(b"\n")[:-1][-1])
    assert result.events - 1 in {last, last + 1}
    assert not result.ok(strict=True)


def _until_full(home: Path, prepare: str, wrapper: list[str]) -> list[str]:
    script = UNTIL_FULL.format(prepare=prepare)
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", script, str(home)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_file_size_limit_is_a_ledger_error(tmp_path: Path) -> None:
    """When the kernel takes no more bytes, `record` raises, goes on raising, and what is there
    verifies."""
    prepare = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))"
    path, what, refused = _until_full(tmp_path, prepare, [])
    assert "can't be recorded" in what
    assert refused == "refused"
    result = verify(Path(path))
    assert (result.status, result.problem) == (Status.UNFINISHED, None)
    assert 100 < result.events < 200


@pytest.mark.promise("5.1")
def test_a_full_disk_is_a_ledger_error(tmp_path: Path) -> None:
    """The same on a file system of 512 KiB that is really full (a tmpfs in a mount namespace of its
    own, gone with the process)."""
    mount = 'mount -t tmpfs -o size=512k none "$0" && "$@" && cp -a "$0/runs" "$0.copy"'
    home = tmp_path / "store"
    home.mkdir()
    wrapper = ["unshare", "--mount", "sh", "-c", mount, str(home)]
    if os.geteuid() != 0:
        wrapper[1:1] = ["--user", "--map-root-user"]
    path, what, refused = _until_full(home, "", wrapper)
    assert "can't be recorded" in what
    assert "space" in what or "full" in what
    assert refused == "refused"
    copied = tmp_path / "store.copy" / Path(path).name
    result = verify(copied)
    assert (result.status, result.problem) == (Status.UNFINISHED, None)
    assert result.events > 100


@pytest.mark.promise("5.1")
def test_what_record_promised_is_on_the_disk_byte_for_byte(tmp_path: Path) -> None:
    """A run finished by another process: each line's `prev` is the digest of the line before,
    computed with nothing of ours."""
    script = WRITER.replace("10**9", "200")
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=True, stdout=subprocess.DEVNULL
    )
    lines = (_run_dir(tmp_path) / "ledger.jsonl").read_bytes().split(b"\n")[:-1]
    assert len(lines) == 202
    prev = "0" * 64
    for number, line in enumerate(lines):
        value = json.loads(line)
        assert (value["seq"], value["prev"]) == (number, prev)
        prev = hashlib.sha256(line).hexdigest()
