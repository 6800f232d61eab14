"""Which policy a cell gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_ai.util import SandboxEnvironmentSpec

from belljar.errors import PolicyError
from belljar.harness.config import BelljarConfig, as_config, choose_policy, expand, for_sample, load, with_changes

POLICY = 'belljar: 1\nrisk: high\nenv:\n  FLAG: "${SAMPLE_METADATA_FLAG}"\n  PLAIN: "$HOME"\n'


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    """A policy that uses metadata."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def test_the_operators_policy_beats_every_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--policy`, then the task's own, then the environment, then the preset high."""
    monkeypatch.setenv("BELLJAR_POLICY", "from-environment")
    assert choose_policy(BelljarConfig(policy="own"), forced="forced") == "forced"
    assert choose_policy(BelljarConfig(policy="own")) == "own"
    assert choose_policy(BelljarConfig()) == "from-environment"
    monkeypatch.delenv("BELLJAR_POLICY")
    assert choose_policy(BelljarConfig()) == "high"


def test_a_preset_on_inspects_command_line(tmp_path: Path) -> None:
    """`--sandbox belljar:high` arrives as a path that does not exist; a file of that name is a file."""
    assert as_config(str(tmp_path / "high")) == BelljarConfig(policy="high")
    (tmp_path / "high").write_text(POLICY)
    assert as_config(str(tmp_path / "high")) == BelljarConfig(policy=str(tmp_path / "high"))


def test_another_providers_configuration_is_refused() -> None:
    """A configuration that means something else elsewhere is never taken for ours."""
    with pytest.raises(PolicyError, match="not Belljar's"):
        as_config(SandboxEnvironmentSpec("docker", None))


def test_a_configuration_changes_the_policy_and_is_checked(policy_file: Path) -> None:
    """What a task changes goes through the policy's own rules."""
    changed = load(BelljarConfig(policy=str(policy_file), workdir="/srv", env=(("A", "1"),)))
    assert changed.policy.workdir == "/srv"
    assert changed.policy.env["A"] == "1"
    assert changed.policy.env["PLAIN"] == "$HOME"
    with pytest.raises(PolicyError, match="can't take"):
        load(BelljarConfig(policy=str(policy_file), workdir="not absolute"))


def test_a_change_keeps_everything_else() -> None:
    """Revalidation neither loses nor alters a field."""
    loaded = load(BelljarConfig(policy="high"))
    assert with_changes(loaded, {}).policy == loaded.policy


def test_metadata_expands_in_env_only(policy_file: Path) -> None:
    """A sample's metadata reaches the values of `env` by Inspect's names."""
    loaded = for_sample(load(str(policy_file)), {"flag": "picoCTF{x}", "other key": 3})
    assert loaded.policy.env["FLAG"] == "picoCTF{x}"
    assert loaded.policy.env["PLAIN"] == "$HOME"


def test_a_missing_key_is_an_error_that_names_it(policy_file: Path) -> None:
    """A policy that asks for what a sample does not have is refused: an empty flag would be a silent change."""
    with pytest.raises(PolicyError, match="SAMPLE_METADATA_FLAG"):
        for_sample(load(str(policy_file)), {})


@pytest.mark.parametrize(
    ("value", "expanded"),
    [
        ("$SAMPLE_METADATA_A", "1"),
        ("x${SAMPLE_METADATA_A}y", "x1y"),
        ("${SAMPLE_METADATA_B:-none}", "none"),
        ("${SAMPLE_METADATA_E:-none}", "none"),
        ("${SAMPLE_METADATA_E-none}", ""),
        ("$${SAMPLE_METADATA_A}", "${SAMPLE_METADATA_A}"),
        ("$$HOME ${HOME} $", "$$HOME ${HOME} $"),
    ],
)
def test_expansion(value: str, expanded: str) -> None:
    """Compose's forms, for our names alone."""
    assert expand(value, {"SAMPLE_METADATA_A": "1", "SAMPLE_METADATA_E": ""}, where="env.X") == expanded


@given(st.text(), st.text())
def test_expansion_never_expands_what_it_put_in(value: str, secret: str) -> None:
    """Metadata is data: a reference inside of it stays as it is."""
    assert expand("${SAMPLE_METADATA_A}", {"SAMPLE_METADATA_A": f"${{SAMPLE_METADATA_B}}{secret}"}, where="x") == (
        f"${{SAMPLE_METADATA_B}}{secret}"
    )
    if "SAMPLE_METADATA_" not in value:
        assert expand(value, {}, where="x") == value


def test_a_tier_is_only_raised_by_whoever_asks_for_one() -> None:
    """The task over the policy, the operator over the task."""
    low = BelljarConfig(policy="low", tier="gvisor")
    assert [str(load(low, forced_tier=tier).policy.tier) for tier in ("", "microvm")] == ["gvisor", "microvm"]
    for config, tier in ((low, "container"), (BelljarConfig(policy="high", tier="container"), "")):
        with pytest.raises(PolicyError, match="less than"):
            load(config, forced_tier=tier)
