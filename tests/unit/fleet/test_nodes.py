"""Which nodes may take part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.fleet.test_head import TASK

from belljar.cli.main import run as belljar
from belljar.dataclass import replace
from belljar.errors import HostError
from belljar.fleet import nodes
from belljar.fleet.engine import CELLS, HARDWARE, MEMORY, Engine
from belljar.fleet.nodes import describe_nodes, pin_keys, prepare_nodes
from belljar.fleet.units import Node
from belljar.harness.selected import SelectedTask
from belljar.ledger import load_or_make_key
from belljar.package import __version__
from belljar.policy import Tier


class Offering:
    """A cluster whose nodes describe themselves so, and answer so when they are called again."""

    def __init__(self, said: Sequence[Mapping[str, Any]], *, is_alone: bool = False) -> None:
        self.said, self.is_alone, self.needs_token = said, is_alone, True
        self.answers: dict[str, Any] = {}

    def offers(self, **_: bool) -> dict[str, dict[str, float]]:
        """Each has room for two cells of each tier but the microVM's, or what it says."""
        tiers = {f"belljar_{tier}": 1.0 for tier in Tier if tier is not Tier.MICROVM}
        room = {CELLS: 2.0, MEMORY: 4096.0, **tiers}
        return {
            f"n{number}": {**room, **each.get("offer", {})} for number, each in enumerate(self.said)
        }

    def on_each(self, nodes: Sequence[str], *_: object, **__: float) -> dict[str, Any]:
        """Each describes itself, or gives its answer."""
        about = {"version": __version__, "inspect": version("inspect-ai"), "has_token": True}
        named = zip(nodes, self.said, strict=True)
        return self.answers or {node: {"name": node, **about, **said} for node, said in named}

    def close(self) -> None:
        """Nothing is open."""


def refusals(engine: Offering, home: Path, task: SelectedTask = TASK) -> list[str]:
    """Why each node gets nothing."""
    return [node.refusal for node in describe_nodes(cast("Engine", engine), home, task)]


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_node_has_a_key_of_its_own(tmp_path: Path, *, is_alone: bool) -> None:
    """One with the head's key (a home directory that is shared), or another node's, is refused:
    its signature would not say whose record it is. A fleet of this machine alone has one store."""
    head = load_or_make_key(tmp_path).fingerprint
    keys = [head, "a" * 64, "a" * 64, "b" * 64]
    engine = Offering([{"key": key} for key in keys], is_alone=is_alone)
    assert [bool(why) for why in refusals(engine, tmp_path)] == [not is_alone, False, True, False]


@pytest.mark.parametrize(
    "said", [{"version": "0"}, {"inspect": "0"}, {"has_token": False}, {"name": "known"}]
)
def test_a_node_of_another_version_key_or_without_a_token_is_refused(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    """Each has its reason; an equal one has none, and one without the tier is not used for it."""
    pin_keys(tmp_path, [Node(node_id="i", name="known", key="c" * 64)])
    engine = Offering([{"key": "a" * 64}, {"key": "b" * 64, **said}])
    assert [bool(why) for why in refusals(engine, tmp_path)] == [False, True]
    assert all(refusals(engine, tmp_path, replace(TASK, tier=Tier.MICROVM)))


def test_a_cell_counts_with_the_memory_of_its_policy(tmp_path: Path) -> None:
    """Of two cells' room, 4 GiB hold one sample of 3 GiB and none of 5; a risk that demands
    hardware virtualisation gets only a node that has it."""
    engine = Offering([{"key": "a" * 64}, {"key": "b" * 64, "offer": {HARDWARE: 1.0}}])
    cells = {
        memory_mib: [
            node.cells
            for node in describe_nodes(
                cast("Engine", engine), tmp_path, replace(TASK, memory_mib=memory_mib)
            )
            if not node.refusal
        ]
        for memory_mib in (1024, 3072, 5120)
    }
    assert cells == {1024: [2, 2], 3072: [1, 1], 5120: []}
    critical = refusals(engine, tmp_path, replace(TASK, needs_hardware=True))
    assert [bool(why) for why in critical] == [True, False]


def test_nodes_with_different_images_of_one_name_are_refused(tmp_path: Path) -> None:
    """Samples would not be those of one evaluation; a node that lacks the image is one less."""
    engine = Offering([{"key": key * 64} for key in "abc"])
    nodes = describe_nodes(cast("Engine", engine), tmp_path, TASK)
    good = {"exit_code": 0, "why": "", "images": {"default": "1" * 64}}
    lacking = {"exit_code": 3, "why": "image default: not there", "images": {}}
    prepare = partial(prepare_nodes, cast("Engine", engine), nodes, "f", b"", "", TASK, tmp_path)
    engine.answers = {"n0": good, "n1": lacking, "n2": good}
    made, images, _ = prepare()
    assert [bool(node.refusal) for node in made] == [False, True, False]
    assert images == good["images"]
    engine.answers["n2"] = {**good, "images": {"default": "2" * 64}}
    with pytest.raises(HostError):
        prepare()
    engine.answers = dict.fromkeys(engine.answers, lacking)
    with pytest.raises(HostError, match="not there"):
        prepare()


def test_a_kill_names_each_node_that_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that give one name are told apart, and one without an answer, or with one of another
    shape, is not killed."""
    engine = Offering([{}] * 4)
    engine.answers = {"n0": ("n", 0, ""), "n1": ("n", 2, ""), "n2": TimeoutError(), "n3": ("n",)}
    monkeypatch.setattr(nodes, "joined", lambda _: closing(engine))
    found = nodes.kill_fleet("slurm", hold_too=False, reason="")
    assert [(each["node"], each["name"], each["ok"]) for each in found] == [
        ("n0", "n", True),
        ("n1", "n", False),
        ("n2", "", False),
        ("n3", "", False),
    ]
    assert belljar(["kill", "--all", "--fleet", "slurm"]) == 2
    engine.answers = dict.fromkeys(engine.answers, ("n", 0, ""))
    assert belljar(["kill", "--all", "--fleet", "slurm"]) == 0
