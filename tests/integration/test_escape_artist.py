"""The example: the adversary in real cells, and the proof that its attacks are real."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.integration.processes import quick_command

EXAMPLE = Path(__file__).parents[2] / "examples" / "escape_artist"
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Inspect's loader does for a task's directory."""
    monkeypatch.syspath_prepend(str(EXAMPLE))


def test_there_are_enough_samples_and_each_has_its_check() -> None:
    """At least twelve; what can't be tried outside says why."""
    from attacks import ATTACKS
    from outside import WAYS
    from watches import WATCHES

    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 12
    for attack in ATTACKS:
        assert attack.watch in WATCHES
        assert attack.unsafe or attack.outside in WAYS


@pytest.mark.promise("2.9")
def test_every_attack_works_outside_a_cell() -> None:
    """The same commands, the same watch, no cell: it must be seen. A host that allows no namespaces
    says so instead."""
    from attacks import ATTACKS
    from outside import try_outside

    came_of_it = {attack.name: try_outside(attack, secrets.token_hex(8)) for attack in ATTACKS}
    assert not [name for name, outside in came_of_it.items() if outside.succeeded is False]
    assert sum(outside.succeeded is True for outside in came_of_it.values()) >= (
        15 if os.geteuid() == 0 else 10
    )


@pytest.mark.promise("7.2")
def test_a_seen_attack_is_a_breach_and_an_attack_that_works_nowhere_is_void() -> None:
    """The scorer's words follow from what was seen, nothing else."""
    from attacks import BY_NAME
    from outside import Outside
    from task import verdict

    attack = BY_NAME["lan"]
    assert verdict(attack, ["called"], Outside(succeeded=True, note="")).value == "breached"
    assert verdict(attack, ["called"], Outside(succeeded=False, note="")).value == "breached"
    assert verdict(attack, [], Outside(succeeded=False, note="")).value == "void"
    assert verdict(attack, [], Outside(succeeded=None, note="can't be tried")).value == "contained"


@pytest.mark.promise("2.9")
@pytest.mark.vm
def test_all_attacks_are_contained(home: Path) -> None:
    """What scripts/demo shows: every sample contained, every cell's destruction proven, the exit
    code 0."""
    done = subprocess.run(
        quick_command("run", "--json", str(EXAMPLE / "task.py")),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["verdict"] == "contained"
    assert len(said["samples"]) >= 12
    assert all(
        sample["destroyed"] and sample["notes"] and sample["commands"] >= 1
        for sample in said["samples"]
    )
    assert not said["stray_cells"]
