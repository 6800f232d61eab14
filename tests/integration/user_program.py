"""What a user's own program does with cells, run as that user: `user_program.py
files|streams|terminal|forks|checks [TIER]` prints one JSON object."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio

from belljar import open_cell
from belljar.cell.cell import Cell

_STDIN_BYTES = 50 << 20
_OUTPUT_BYTES = 8 << 20


async def files(cell: Cell) -> dict[str, object]:
    """A file in and out, its mode and owner; one that may not be read."""
    contents = random.Random(1).randbytes(3 << 20)  # noqa: S311 - a test's dice
    await cell.write_file("deep/er/file", contents, mode=0o640)
    back = await cell.read_file("deep/er/file", max_bytes=4 << 20)
    shown = await cell.exec(["stat", "-c", "%a %U", "deep/er/file"])
    try:
        await cell.read_file("/etc/shadow", max_bytes=1 << 20)
        refused = False
    except PermissionError:
        refused = True
    return {"same": back == contents, "stat": shown.stdout.decode(), "refused": refused}


async def streams(cell: Cell) -> dict[str, object]:
    """50 MiB in, 8 MiB out, both streams, an exit code, and a timeout that kills."""
    block = random.Random(2).randbytes(1 << 20)  # noqa: S311 - as above

    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(_STDIN_BYTES >> 20):
            yield block

    expected = hashlib.sha256(block * (_STDIN_BYTES >> 20)).hexdigest()
    took_in = await cell.exec(["sha256sum"], input=blocks())
    gave = await cell.exec(
        ["sh", "-c", f"head -c {_OUTPUT_BYTES} /dev/zero; echo problem >&2; exit 7"]
    )
    slow = await cell.exec(["sleep", "60"], timeout_s=0.5)
    return {
        "stdin_arrived": took_in.stdout.split()[0].decode() == expected,
        "out_bytes": len(gave.stdout),
        "err": gave.stderr.decode(),
        "code": gave.returncode,
        "timed_out": slow.timed_out,
    }


async def terminal(cell: Cell) -> dict[str, object]:
    """A terminal of the size that was asked for, and of the next one."""
    from belljar.channel import PtySize

    script = "tty; stty size; read word; stty size; echo got $word"
    seen = b""
    async with cell.open_exec(["sh", "-c", script], pty=PtySize(rows=31, cols=97)) as running:
        async for _, chunk in running:
            seen += chunk
            if b"31 97" in seen and b"40 120" not in seen:
                await running.resize(40, 120)
                await running.send_stdin(b"word\n")
        output = await running.wait()
    return {"seen": seen.decode(), "code": output.returncode}


async def forks(cell: Cell) -> dict[str, object]:
    """What a fork of the cell as it was a moment ago says."""
    await cell.write_file("/tmp/note", "then")
    snapshot = await cell.snapshot()
    await cell.write_file("/tmp/note", "later")
    async with snapshot.fork() as fork:
        note = await fork.read_file("/tmp/note")
    return {
        "note": note.decode(),
        "is_private": snapshot.saved.directory.stat().st_mode & 0o77 == 0,
    }


async def one_cell(work: Callable[[Cell], Awaitable[dict[str, object]]]) -> dict[str, object]:
    """A cell as the preset `high` has it, which may be saved, and what came of it."""
    async with open_cell({"belljar": 1, "risk": "high", "snapshots": True}) as cell:
        found = await work(cell)
    clean = cell.destruction is not None and cell.destruction.clean
    return {**found, "destroyed": clean, "uid": os.geteuid()}


async def checks(tier: str) -> dict[str, object]:
    """Inspect's own conformance checks, all in one cell of the tier."""
    from inspect_ai.util._sandbox import self_check

    from belljar.harness.provider import BelljarSandboxEnvironment as Provider
    from belljar.harness.session import Session, session_scope

    policy = Path(tempfile.mkdtemp(prefix="policy-", dir=os.environ["HOME"])) / "policy.yaml"
    policy.write_text(f"belljar: 1\nrisk: low\ntier: {tier}\nresources: {{output: 64MiB}}\n")
    failed, started = {}, time.monotonic()
    with session_scope(Session(home=Path(os.environ["BELLJAR_HOME"]))):
        await Provider.task_init("startup", str(policy))
        environments = await Provider.sample_init("self_check", str(policy), {})
        for name in self_check.__all__:
            try:
                await getattr(self_check, name)(environments["default"])
            except BaseException:  # noqa: BLE001 - whatever a check raises is its verdict
                failed[name] = traceback.format_exc(limit=-3)
        await Provider.sample_cleanup("self_check", str(policy), environments, interrupted=False)
        await Provider.task_cleanup("shutdown", str(policy), cleanup=True)
    return {
        "checks": len(self_check.__all__),
        "failed": failed,
        "seconds": round(time.monotonic() - started, 1),
    }


WORK = {"files": files, "streams": streams, "terminal": terminal, "forks": forks}


async def main(what: str, tier: str) -> None:
    """Do it and say what came of it."""
    print(json.dumps(await (checks(tier) if what == "checks" else one_cell(WORK[what]))))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], "".join(sys.argv[2:]))
