"""Which nodes may take part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from tests.fakes.images import put_image
from tests.unit.fleet.test_head import TASK

from belljar.cli.main import run as belljar
from belljar.dataclass import replace
from belljar.errors import ContainmentBreach, HostError, LedgerError
from belljar.fleet import head, nodes
from belljar.fleet.engine import CELLS, HARDWARE, MEMORY, Engine
from belljar.fleet.head import Head
from belljar.fleet.node import clear
from belljar.fleet.nodes import Sent, describe_nodes, pin_keys, prepare_nodes
from belljar.fleet.units import Node
from belljar.harness.options import RunRequest, SelectedTask
from belljar.image.store import Store
from belljar.ledger.keys import load_or_make_key
from belljar.ledger.writer import LedgerWriter
from belljar.package import __version__
from belljar.policy.limits import Tier


class Offering:
    """A cluster whose nodes describe themselves so, and answer so when they are called again."""

    def __init__(self, said: Sequence[Mapping[str, Any]]) -> None:
        self.said, self.needs_token = said, True
        self.answers: dict[str, Any] = {}
        self.called: list[object] = []

    def offers(self, **_: bool) -> dict[str, dict[str, float]]:
        """Each has room for two cells of each tier but the microVM's, or what it says."""
        tiers = {f"belljar_{tier}": 1.0 for tier in Tier if tier is not Tier.MICROVM}
        room = {CELLS: 2.0, MEMORY: 4096.0, **tiers}
        return {
            f"n{number}": {
                name: value
                for name, value in {**room, **each.get("offer", {})}.items()
                if value is not None
            }
            for number, each in enumerate(self.said)
        }

    def on_each(self, nodes: Sequence[str], call: partial[Any], **_: float) -> dict[str, Any]:
        self.called.append(call.func)
        about = {"version": __version__, "inspect": version("inspect-ai"), "has_token": True}
        named = zip(nodes, self.said, strict=True)
        return self.answers or {node: {"name": node, **about, **said} for node, said in named}

    def close(self) -> None:
        """Nothing is open."""


def refusals(engine: Offering, home: Path, task: SelectedTask = TASK) -> list[str]:
    return [node.refusal for node in describe_nodes(cast("Engine", engine), home, task)]


def test_a_node_has_a_key_of_its_own(tmp_path: Path) -> None:
    """One with the head's key (a home directory that is shared), or another node's, is refused:
    its signature would not say whose record it is."""
    head = load_or_make_key(tmp_path).fingerprint
    keys = [head, "a" * 64, "a" * 64, "b" * 64]
    engine = Offering([{"key": key} for key in keys])
    assert [bool(why) for why in refusals(engine, tmp_path)] == [True, False, True, False]


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


@pytest.mark.parametrize(
    "said",
    [
        *("x", None, 5, [], {}),
        *({"name": 5}, {"key": "a"}, {"key": "\ud800" * 64}, {"version": []}, {"inspect": {}}),
    ],
)
def test_a_node_whose_answer_is_none_is_refused_alone(tmp_path: Path, said: object) -> None:
    """Whatever its shape: the others take part, and what is on record of it can be written."""
    engine = Offering([{}, {}])
    about = {"name": "n0", "key": "a" * 64, "version": __version__, "has_token": True}
    about["inspect"] = version("inspect-ai")
    engine.answers = {"n0": about, "n1": {**about, **said} if said and type(said) is dict else said}
    assert [bool(why) for why in refusals(engine, tmp_path)] == [False, True]
    odd = {**about, "name": "\ud800", "version": "\ud800", "key": "b" * 64}
    engine.answers = {"n0": about, "n1": odd}
    for node in describe_nodes(cast("Engine", engine), tmp_path, TASK):
        assert f"{node.name}{node.refusal}".encode()


def test_a_cell_counts_with_the_memory_of_its_policy(tmp_path: Path) -> None:
    """4 GiB hold one sample of 3 GiB, none of 5; who needs hardware gets a node that has it."""
    engine = Offering([{"key": "a" * 64}, {"key": "b" * 64, "offer": {HARDWARE: 1.0}}])
    cells = dict[int, list[int]]()
    for memory_mib in (1024, 3072, 5120):
        task = replace(TASK, memory_mib=memory_mib)
        found = describe_nodes(cast("Engine", engine), tmp_path, task)
        cells[memory_mib] = [node.cells for node in found if not node.refusal]
    assert cells == {1024: [2, 2], 3072: [1, 1], 5120: []}
    unnamed = Offering([{"key": "a" * 64, "offer": {MEMORY: None}}])
    assert MEMORY in refusals(unnamed, tmp_path)[0]
    critical = refusals(engine, tmp_path, replace(TASK, needs_hardware=True))
    assert [bool(why) for why in critical] == [True, False]


def test_nodes_with_different_images_of_one_name_are_refused(tmp_path: Path) -> None:
    """Samples would not be those of one evaluation; a node that lacks the image is one less."""
    engine = Offering([{"key": key * 64} for key in "abc"])
    nodes = describe_nodes(cast("Engine", engine), tmp_path, TASK)
    good = {"exit_code": 0, "why": "", "images": {"default": "1" * 64}, "missing": []}
    lacking = {"exit_code": 3, "why": "image default: not there", "images": {}, "missing": []}
    prepare = partial(prepare_nodes, cast("Engine", engine), nodes, "f", b"", TASK, tmp_path)
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


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A head's, with an image of the task and another one."""
    for name in ("tools", "secret"):
        put_image(tmp_path, name, name.encode())
    return Store(tmp_path)


@pytest.mark.parametrize("others", ["0" * 64, ""])
def test_a_node_gets_only_what_the_task_needs_and_all_nodes_can_share(
    store: Store, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    """It names what it lacks: another image of the head is not sent to it, nor one of which another
    node has other bytes; a node whose answer has another shape is refused, and ends nothing."""
    good = {"exit_code": 0, "why": "", "missing": []}
    good["images"] = {"tools": others or store.find("tools").digest}
    lacking = {"exit_code": 3, "why": "not there", "images": {}, "missing": ["secret", "tools"]}
    engine, asked = Offering([{}] * 8), list[Mapping[str, Sequence[str]]]()
    bad = [{**lacking, "missing": 5}, {**lacking, "missing": [{}]}, "x", {}]
    bad += [{**good, "images": images} for images in ({"tools": 5}, {"\ud800": "0" * 64})]
    engine.answers = {"n0": good, "n1": lacking}
    engine.answers |= {f"n{number}": each for number, each in enumerate(bad, 2)}

    def send(*given: Any) -> tuple[list[Sent], dict[str, str]]:  # noqa: ANN401 - `send_images`'s
        asked.append(given[3])
        return [], {}

    monkeypatch.setattr(nodes, "send_images", send)
    all_nodes = [Node(node_id=each, name=each) for each in engine.answers]
    task = replace(TASK, images=frozenset({"tools"}))
    made, *_ = prepare_nodes(cast("Engine", engine), all_nodes, "f", b"", task, store.home)
    assert asked == [{} if others else {"n1": ["tools"]}]
    assert [bool(each.refusal) for each in made] == [False] + [True] * 7
    assert all("understood" in each.refusal for each in made[2:])


def ready(monkeypatch: pytest.MonkeyPatch) -> Offering:
    """A cluster of one node that a task can run on."""
    engine, node = Offering([{"key": "a" * 64}]), Node(node_id="n0", name="n0", cells=1)
    monkeypatch.setattr(head, "joined", lambda _, **__: closing(engine))
    monkeypatch.setattr(head, "load_only", lambda *_: None)
    monkeypatch.setattr(head, "select_task", lambda *_: TASK)
    monkeypatch.setattr(head, "prepare_nodes", lambda *_: ([node], {}, []))
    return engine


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_run_that_does_not_begin_leaves_nothing_on_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_begun: bool
) -> None:
    """After Ctrl-C while images are sent the nodes are told to clear; not while units run there."""
    engine, interrupted = ready(monkeypatch), Mock(side_effect=KeyboardInterrupt)
    if not is_begun:
        monkeypatch.setattr(head, "prepare_nodes", interrupted)
    monkeypatch.setattr(Head, "run_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        head.run_fleet(RunRequest(inspect_args=[], home=tmp_path), "ray")
    assert (clear in engine.called) is not is_begun


@pytest.mark.parametrize("verdict", ["breached", "contained"])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_breach_on_a_fleet_is_told_though_its_record_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, *, is_sealed: bool
) -> None:
    """A full disk would read as a fault of the record; without a breach it is one."""
    findings = SimpleNamespace(findings=SimpleNamespace(verdict=verdict))
    ready(monkeypatch)
    monkeypatch.setattr(Head, "run_all", lambda *_, **__: findings)
    place: tuple[object, str] = (head, "check_ledger") if is_sealed else (LedgerWriter, "seal")
    monkeypatch.setattr(*place, Mock(side_effect=LedgerError("no space left on device")))
    with pytest.raises(ContainmentBreach if verdict == "breached" else LedgerError):
        head.run_fleet(RunRequest(inspect_args=[], home=tmp_path), "ray")


def test_a_kill_names_each_node_that_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes of one name are told apart; one without an answer of the right shape is not killed."""
    answers = [("n", 0, ""), ["n", 2, ""], TimeoutError(), ("n",), ["n", False, ""], ["n", 0, []]]
    engine = Offering([{}] * len(answers))
    engine.answers = {f"n{number}": answer for number, answer in enumerate(answers)}
    monkeypatch.setattr(nodes, "joined", lambda _: closing(engine))
    found = nodes.kill_fleet("slurm", hold_too=False, reason="")
    assert [each["node"] for each in found] == [*engine.answers]
    assert [each["name"] for each in found] == ["n", "n", "", "", "n", ""]
    assert [each["ok"] for each in found] == [True, False, False, False, False, False]
    assert belljar(["kill", "--all", "--fleet", "slurm"]) == 2
    engine.answers = dict.fromkeys(engine.answers, ("n", 0, ""))
    assert belljar(["kill", "--all", "--fleet", "slurm"]) == 0
