"""Killing owners of cells at chosen places and saying what that left: for tests as root and as an
ordinary user."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Any

from tests.integration.as_user import own
from tests.integration.crash_owner import PHASES, Site
from tests.integration.remains import Remains, cells_of, within

from belljar.ledger.verification import Status, verify

OWNER = Path(__file__).parent / "crash_owner.py"
REAP_WITHIN_S = 5.0
"""What most reapings keep to; a busy host may stall any single one."""
GONE_WITHIN_S = 60.0
LIVES = 3  # A line where something is waited for is on the way of some only
POLICY = """\
belljar: 1
risk: low
tier: {tier}
user: root
snapshots: true
resources: {{memory: 256MiB, disk: 64MiB, processes: 64, exec_timeout: 30s, lifetime: 30m}}
"""


@dataclass
class Owners:
    """The process that forks owners, another one with a cell that lives all the while, and what is
    looked for."""

    home: Path
    scratch: Path
    held: subprocess.Popen[str]
    fork_server: subprocess.Popen[str]
    held_cell: str = ""
    remains: Remains = field(init=False)

    def ask(self, **request: object) -> dict[str, Any]:
        """One request to the fork server, and its answer."""
        return dict(json.loads(talk(self.fork_server, json.dumps(request))))

    def held_answers(self) -> bool:
        """The living owner's cell still runs commands."""
        return talk(self.held, "still here") == "still here"

    def watch(self) -> None:
        """From now on anything new is a leftover."""
        self.remains = Remains.since_now(self.home, self.fork_server.pid, self.scratch)

    def runs(self) -> set[Path]:
        """The run directories there are."""
        return set((self.home / "runs").iterdir())


def talk(process: subprocess.Popen[str], line: str) -> str:
    """A line to the process and one back."""
    write, read = _ends(process)
    write.write(line + "\n")
    write.flush()
    said = read.readline()
    if not said:
        raise RuntimeError(f"the program ended with status {process.poll()}")
    return said.strip()


def _ends(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


@contextlib.contextmanager
def program(
    *words: str, environment: Mapping[str, str], ids: tuple[int, int] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """The owner program; it ends with its standard input."""
    pipe = subprocess.PIPE
    uid, gid = ids or (None, None)
    groups: list[int] | None = None if ids is None else []
    with subprocess.Popen(
        words,
        stdin=pipe,
        stdout=pipe,
        text=True,
        env=environment,
        cwd="/",
        user=uid,
        group=gid,
        extra_groups=groups,
    ) as process:
        try:
            yield process
        finally:
            _ends(process)[0].close()
            process.wait(timeout=60)


@contextlib.contextmanager
def owners_of(
    home: Path,
    tier: str,
    owner: Sequence[str],
    environment: Mapping[str, str],
    *,
    ids: tuple[int, int] | None = None,
    policy_text: str = POLICY,
) -> Iterator[Owners]:
    """Owners on this store, beside which policy and temporary files go, and one of them that holds
    a cell all along."""
    policy, scratch = home.parent / "policy.yaml", home.parent / "scratch"
    scratch.mkdir()
    policy.write_text(policy_text.format(tier=tier))
    if ids is not None:
        own(scratch, *ids)
    words, environment = (*owner, str(home), str(policy)), {**environment, "TMPDIR": str(scratch)}
    with (
        program(*words, "hold", environment=environment, ids=ids) as held,
        program(*words, environment=environment, ids=ids) as fork_server,
    ):
        cell_id = _ends(held)[1].readline().strip()
        if not cell_id:
            raise RuntimeError("the cell to be held could not be opened")
        yield Owners(home, scratch, held, fork_server, cell_id)
    scratch.rmdir()
    if left := [*(home / "journal").iterdir()]:
        raise RuntimeError(f"the journal still has {left}")


def spread(sites: Sequence[Site], count: int) -> list[Site]:
    """So many of them, evenly."""
    return [sites[index * len(sites) // count] for index in range(min(count, len(sites)))]


def choose(owners: Owners, sites_of_phase: Mapping[str, int]) -> list[Site]:
    """Rehearse a life, and take so many of each phase's sites. From now on anything new is a
    leftover."""
    rehearsed = owners.ask(do="rehearse")
    if not rehearsed.get("clean"):
        raise RuntimeError(f"the rehearsal failed: {rehearsed}")
    owners.watch()
    sites: list[Site] = [(str(a), str(b), int(c), str(d)) for a, b, c, d in rehearsed["sites"]]
    return [
        site
        for phase in PHASES
        for site in spread([one for one in sites if one[0] == phase], sites_of_phase[phase])
    ]


def kill_at(owners: Owners, sites: Sequence[Site]) -> tuple[int, set[str], list[str]]:
    """One life for each site, and another where it did not come by; how many died there, the cells
    they had, and every fault with its place."""
    killed, cells, faults, reaped_s = 0, set[str](), list[str](), list[float]()
    for site in sites:
        for _ in range(LIVES):
            before = owners.runs()
            died = owners.ask(do="die", site=site)
            found = owners.runs() - before
            names = {name for run in found for name in cells_of(run)}
            cells |= names
            where = f"{site[0]} {site[1]}:{site[2]} ({site[3]})"
            wrong = faults_of(owners, died, names, found, reaped_s)
            faults += [f"{where}: {fault}" for fault in wrong]
            if died["signal"] == 9:
                killed += 1
                break
    if sites and median(reaped_s) > REAP_WITHIN_S:
        faults.append(f"reaping took {reaped_s}")
    return killed, cells, faults


def faults_of(
    owners: Owners,
    died: dict[str, Any],
    cells: set[str],
    runs: set[Path],
    reaped_s: list[float] | None = None,
) -> Iterator[str]:
    """Everything that is wrong after one owner's death; `reaped_s` also gets how long the reaping
    took."""
    if "error" in died:
        yield f"it failed: {died['error']}"
    reaped = owners.ask(do="reap")
    if reaped_s is not None:
        reaped_s.append(reaped.get("duration_s", math.inf))
    yield from (f"reaping left {what}" for what in reaped.get("remaining", [reaped.get("error")]))
    left = within(GONE_WITHIN_S, lambda: owners.remains.of(cells, [died["pid"]]))
    yield from (f"left: {what}" for what in left)
    if left:
        yield f"reaping said {reaped}"
    yield from (
        f"the run does not verify: {fault}"
        for run in runs
        for fault in ledger_faults(run, died["signal"] == 9)
    )
    if not owners.held_answers():
        yield "the other owner's cell did not answer"
    for run in runs:
        shutil.rmtree(run)


def ledger_faults(run: Path, killed: bool) -> Iterator[str]:
    """A run whose owner died before its first event has nothing to verify; any other verifies as
    far as it goes."""
    ledger = run / "ledger.jsonl"
    if b"\n" not in (ledger.read_bytes() if ledger.exists() else b""):
        return
    result = verify(run)
    if result.status is Status.BAD or not (killed or result.status is Status.VERIFIED):
        yield f"{result.status}: {result.problem}"
