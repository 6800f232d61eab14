"""Killing owners of cells at chosen places and saying what that left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.conftest import copy_store
from tests.integration.as_user import own
from tests.integration.crash_owner import PHASES, Site
from tests.integration.remains import Remains, cells_of, within
from tests.machine import PATIENCE_S, Templates

from belljar.ledger.verification import Status, verify

OWNER = Path(__file__).parent / "crash_owner.py"
REHEARSALS = 2  # Some sites come by in one life only.
LIVES = 3  # A line where something is waited for is on the way of some only
NOT_REACHED = 2  # So many sites may not come by again: which calls a busy machine makes differs.
POLICY = """\
belljar: 1
risk: low
tier: {tier}
user: root
snapshots: true
resources: {{memory: 256MiB, disk: 64MiB, processes: 64, exec_timeout: 10m, lifetime: 30m}}
"""


@dataclass
class Owners:
    """What forks owners, another with a cell that lives all the while, and the look for remains."""

    home: Path
    scratch: Path
    held: subprocess.Popen[str]
    fork_server: subprocess.Popen[str]
    held_cell: str = ""
    remains: Remains = field(init=False)

    def ask(self, **request: object) -> dict[str, Any]:
        return dict(json.loads(talk(self.fork_server, json.dumps(request))))

    def held_answers(self) -> bool:
        return talk(self.held, "still here") == "still here"

    def watch(self) -> None:
        self.remains = Remains.since_now(self.home, self.fork_server.pid, self.scratch)

    def runs(self) -> set[Path]:
        return set((self.home / "runs").iterdir())


def talk(process: subprocess.Popen[str], line: str) -> str:
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
    pipe = subprocess.PIPE
    who: dict[str, Any] = (
        {} if ids is None else {"user": ids[0], "group": ids[1], "extra_groups": []}
    )
    with subprocess.Popen(
        words, stdin=pipe, stdout=pipe, text=True, env=environment, cwd="/", **who
    ) as process:
        try:
            yield process
        finally:
            _ends(process)[0].close()
            process.wait(timeout=PATIENCE_S)


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
    """Owners on this store; one of them holds a cell all along."""
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
    return [sites[index * len(sites) // count] for index in range(min(count, len(sites)))]


def rehearse(
    owners: Owners, *, lives: Sequence[str] = ("destroy", "end"), times: int = REHEARSALS
) -> list[Site]:
    """The sites that come by each time in lives that end so."""
    passed = list[dict[Site, None]]()
    for _ in range(times):
        sites: dict[Site, None] = {}
        for last in lives:
            rehearsed = owners.ask(do="rehearse", last=last)
            if not rehearsed.get("clean"):
                raise RuntimeError(f"the rehearsal failed: {rehearsed}")
            sites |= {(str(a), str(b), int(c), str(d)): None for a, b, c, d in rehearsed["sites"]}
        passed.append(sites)
    owners.watch()
    return [site for site in passed[0] if all(site in others for others in passed)]


def choose(sites: Sequence[Site], sites_of_phase: Mapping[str, int]) -> list[Site]:
    return [
        site
        for phase in PHASES
        for site in spread([one for one in sites if one[0] == phase], sites_of_phase.get(phase, 0))
    ]


def choose_in(sites: Sequence[Site], folder: str, count: int) -> list[Site]:
    """So many in that folder: of each file, of each phase that has none yet, then any."""
    inside = [site for site in sites if site[1].startswith(folder)]
    chosen: dict[Site, None] = {}
    for place in (1, 0):  # its file, its phase
        for name in dict.fromkeys(site[place] for site in inside):
            if name not in {site[place] for site in chosen}:
                of_it = [site for site in inside if site[place] == name]
                chosen[of_it[len(of_it) // 2]] = None
    others = [site for site in inside if site not in chosen]
    return [*chosen, *spread(others, max(0, count - len(chosen)))]


def kill_at(owners: Owners, sites: Sequence[Site]) -> tuple[set[str], list[str]]:
    """One life for each site, or more; the cells they had, and every fault with its place."""
    killed, cells, faults = 0, set[str](), list[str]()
    for site in sites:
        for _ in range(LIVES):
            before = owners.runs()
            died = owners.ask(do="die", site=site)
            found = owners.runs() - before
            names = {name for run in found for name in cells_of(run)}
            cells |= names
            where = f"{site[0]} {site[1]}:{site[2]} ({site[3]})"
            wrong = faults_of(owners, died, names, found)
            faults += [f"{where}: {fault}" for fault in wrong]
            if died["signal"] == 9:
                killed += 1
                break
    if killed < len(sites) - NOT_REACHED:
        faults.append(f"only {killed} of {len(sites)} sites were reached again")
    return cells, faults


def faults_of(
    owners: Owners, died: dict[str, Any], cells: set[str], runs: set[Path]
) -> Iterator[str]:
    if "error" in died:
        yield f"it failed: {died['error']}"
    reaped = owners.ask(do="reap")
    yield from (f"reaping left {what}" for what in reaped.get("remaining", [reaped.get("error")]))
    left = within(PATIENCE_S, lambda: owners.remains.of(cells, [died["pid"]]))
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
    """It verifies as far as it goes; before its first event there is nothing to verify."""
    ledger = run / "ledger.jsonl"
    if b"\n" not in (ledger.read_bytes() if ledger.exists() else b""):
        return
    result = verify(run)
    if result.status is Status.BAD or not (killed or result.status is Status.VERIFIED):
        yield f"{result.status}: {result.problem}"


# ---- a tier's own


@contextlib.contextmanager
def root_owners(
    tier: str, prepared_home: Path, base: Path, templates: Templates, policy_text: str = POLICY
) -> Iterator[Owners]:
    """Owners with a store of their own, in which one cell is held all along."""
    home = copy_store(prepared_home, base / "store")
    words = (sys.executable, str(OWNER))
    with (
        templates.serving(home),
        owners_of(home, tier, words, os.environ, policy_text=policy_text) as made,
    ):
        yield made
