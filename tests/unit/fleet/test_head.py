"""The head of a fleet, with an engine of the test's: units end as it says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from belljar.events import Event, JsonValue, Kind
from belljar.fleet.archive import pack_run
from belljar.fleet.engine import Engine
from belljar.fleet.head import Head
from belljar.fleet.judge import KIND
from belljar.fleet.units import Node
from belljar.harness.selected import SelectedTask
from belljar.ledger import create_run, local_fingerprint, read_events
from belljar.policy import Tier

TASK = SelectedTask(
    name="t",
    root=None,
    words=(),
    check_words=(),
    samples=("a",),
    epochs=1,
    tier=Tier.CONTAINER,
)


class Scripted:
    """The first attempt sends `first` from its node, each other one a run that ended."""

    def __init__(self, home: Path, first: Sequence[Any]) -> None:
        self.first, self.last_heard_s, self.is_stopping = [*first], dict[str, float](), False
        self.runs = {name: sealed(home / name, interrupted=False) for name in ("n1", "n2")}
        self.placed: list[str] = []

    def start(
        self, _arguments: Sequence[Any], *, nodes: Sequence[str], **_: object
    ) -> Iterator[Any]:
        """Place a unit on the first node that may have it."""
        self.placed.append(nodes[0])
        items = self.first if len(self.placed) == 1 else self.runs[nodes[0]]
        return iter([{"node": nodes[0]}, *items])

    def ready(self, units: Sequence[Any], **_: float) -> Iterator[tuple[Any, Any]]:
        """Give the next item of each unit."""
        for unit in units:
            yield unit, next(unit, None)

    def cancel(self, unit: object) -> None:
        """Nothing runs."""

    def watch(self, fleet: str, nodes: Sequence[str]) -> None:
        """Nothing is watched."""


def sealed(home: Path, *, interrupted: bool) -> list[Any]:
    """What a unit sends: its run, and how it ended."""
    with create_run(home, "run" if interrupted else "cell", []) as run:
        data: dict[str, JsonValue] = {"interrupted": interrupted, "stopped": False, "errors": []}
        run.recorder.record(Event(kind=Kind.RUN_EVALUATED, data=data))
    archive = b"".join(pack_run(run.path))
    end = {"run_id": run.run_id, "sha256": hashlib.sha256(archive).hexdigest(), "exit_code": 0}
    return [archive, {**end, "lasted_s": 1.0, "why": ""}]


NO_RUN: Mapping[str, Any] = {"run_id": "", "exit_code": 5, "why": "no space", "lasted_s": 1.0}


@pytest.mark.parametrize("how", ["interrupted", "lost", "changed", "refused"])
def test_what_a_node_did_to_a_unit_is_tried_on_another(tmp_path: Path, how: str) -> None:
    """A unit that was interrupted there, whose connection ended, whose archive came changed, or
    that did not begin: the failure is on record, and the second attempt counts."""
    interrupted = sealed(tmp_path / "n1", interrupted=True)
    first = {
        "interrupted": interrupted,
        "lost": [OSError("connection lost")],
        "changed": [b"x", interrupted[1]],
        "refused": [NO_RUN],
    }[how]
    engine = Scripted(tmp_path, first)
    keys = {name: local_fingerprint(tmp_path / name) or "" for name in engine.runs}
    nodes = [Node(node_id=name, name=name, key=key, cells=1) for name, key in keys.items()]
    with create_run(tmp_path / "head", KIND, []) as run:
        head = Head(TASK, cast("Engine", engine), run, nodes)
        head.run_all("w", require_contained=False)
    assert engine.placed[:2] == ["n1", "n2"]
    events = [line for line in read_events(run.path) if line.kind.value.startswith("fleet.unit")]
    failed = [line.data for line in events if line.kind is Kind.FLEET_UNIT_FAILED]
    assert (failed[0]["node"], failed[0]["attempt"]) == ("n1", 1)
    finished = [line.data for line in events if line.kind is Kind.FLEET_UNIT_FINISHED]
    assert [(each["node"], each["attempt"]) for each in finished] == [("n2", 2)]
