"""Under the operator's policy a task keeps what it brings, and loosens nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belljar.differences import DifferenceKind
from belljar.errors import PolicyError
from belljar.policy.load import load_preset, parse_policy
from belljar.policy.loaded import LoadedPolicy
from belljar.policy.merge import NO_NETWORK, bounded, under_policy
from belljar.policy.network import Network


def policy(text: str = "", base: Path | None = None, *, source: str = "p.yaml") -> LoadedPolicy:
    """A policy of these fields; risk low unless they say another."""
    risk = "" if "risk:" in text else "risk: low\n"
    return parse_policy(f"belljar: 1\n{risk}{text}".encode(), source=source, base=base)


def web(**words: Any) -> Network:  # noqa: ANN401 - a policy's words
    """A range with one service."""
    cell = {"kind": "cell", "names": ["web"], "ports": ["all"], **words}
    return Network.model_validate({"stand_ins": {"web": cell}}, strict=False)


SERVICES = web()
SHOP = "shop: {kind: http, names: [shop.example], routes: [{path: /, body: x}]}"
NETWORK = f"network: {{record: {{packets: 1GiB}}, stand_ins: {{{SHOP}}}}}\n"
REAL = (
    "network: {upstreams: [{host: a.example, ports: [443], methods: [GET], budget: 1MiB, reason:"
    " because it is so}]}\n"
)
COMPOSE: dict[str, Any] = {
    "image": "ctf:2",
    "user": "1000",
    "workdir": "/srv",
    "env": {"FLAG": "f"},
    "network": SERVICES,
}


def keys(found: tuple[Any, ...], kind: DifferenceKind) -> list[str]:
    """The keys of the differences of a kind."""
    return [item.key for item in found if item.kind is kind]


@pytest.mark.promise("1.4")
@pytest.mark.parametrize("preset", ["low", "critical"])
def test_a_preset_changes_nothing_of_a_task(preset: str) -> None:
    """`--policy low` on a task of several services: walls of the preset, the rest the author's."""
    run_policy = load_preset(preset)
    made, differences = under_policy(run_policy, None, COMPOSE)
    found = made.policy
    assert (found.image, found.user, found.workdir) == ("ctf:2", "1000", "/srv")
    assert found.env == {"FLAG": "f"}
    assert found.network is not None
    assert list(found.network.stand_ins) == ["web"]
    assert (found.risk, found.tier) == (run_policy.policy.risk, run_policy.policy.tier)
    assert bounded(made, run_policy).policy == found
    assert differences == ()


@pytest.mark.promise("1.5")
def test_what_the_policy_writes_down_yields_to_the_task() -> None:
    """Field by field, reported."""
    run_policy = policy("image: mine\nenv: {FLAG: g, MORE: m}\nnetwork: none\n")
    kept, differences = under_policy(run_policy, None, COMPOSE)
    assert kept.policy.image == "ctf:2"
    assert keys(differences, DifferenceKind.DROPPED) == ["image", "env"]
    assert kept.policy.network is not None


@pytest.mark.promise("1.4")
def test_an_image_of_a_task_comes_with_its_own_user() -> None:
    """A user, a directory and variables of the operator's policy were written for another image."""
    run_policy = policy("image: mine\nuser: agent\nworkdir: /w\nenv: {A: b}\n")
    for own, asked in ((None, {"image": "ctf:2"}), (policy("image: ctf:2\n"), {})):
        found = under_policy(run_policy, own, asked)[0].policy
        assert (found.image, found.user, found.workdir) == ("ctf:2", None, None)
        assert not found.env


@pytest.mark.promise("1.4")
def test_of_a_tasks_own_policy_the_content_is_kept_and_no_wall() -> None:
    """Its risk, limits, tools and network are the operator's, stricter or not, and reported."""
    own = policy(
        "image: ctf:2\nresources: {memory: 1GiB}\nhost_tools: {allow: [x]}\n" + REAL, source="own"
    )
    run_policy = policy("risk: high\n")
    made, differences = under_policy(run_policy, own, {})
    assert made.policy.image == "ctf:2"
    assert made.policy.network is None
    assert bounded(made, run_policy).policy == made.policy
    walls = ["risk", "resources", "host_tools", "network"]
    assert keys(differences, DifferenceKind.CHANGED) == walls
    stricter, differences = under_policy(policy(), policy("risk: critical\n"), {})
    assert str(stricter.policy.risk) == "low"
    assert keys(differences, DifferenceKind.CHANGED) == ["risk"]


@pytest.mark.promise("1.4")
def test_the_network_of_a_task_without_services_is_the_operators() -> None:
    """Or none, where the task wants none; a task's own upstreams or stand-ins are never there."""
    run_policy = policy(NETWORK)
    theirs = run_policy.policy.network
    assert under_policy(run_policy, None, {"image": "i"})[0].policy.network == theirs
    assert under_policy(run_policy, None, {"network": NO_NETWORK})[0].policy.network is None
    assert under_policy(run_policy, policy(REAL), {})[0].policy.network == theirs


def test_files_are_taken_from_one_directory(tmp_path: Path) -> None:
    """The task's, or the operator's; not both at once."""
    theirs, ours = tmp_path / "operator", tmp_path / "task"
    for directory in (theirs, ours):
        (directory / "site").mkdir(parents=True)
        (directory / "site/a.har").touch()
        (directory / "f").touch()
    copied = "files: [{source: f, target: /f}]\n"
    site = "network: {stand_ins: {s: {kind: har, names: [s.example], recording: site/a.har}}}\n"
    own = policy(copied, ours)
    assert under_policy(policy("", theirs), own, {})[0].base == ours
    assert under_policy(policy(copied, theirs), None, {})[0].base == theirs
    with pytest.raises(PolicyError, match="of two directories"):
        under_policy(policy(site, theirs), own, {})
