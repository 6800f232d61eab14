"""While `belljar run` is on, nothing but cells can be a sandbox in its process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from inspect_ai._util import registry as inspect_registry
from inspect_ai.util import (
    LimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentSpec,
    sandboxenv,
)
from inspect_ai.util._sandbox import registry
from inspect_ai.util._sandbox.local import LocalSandboxEnvironment
from tests.fakes.cell import RecordedCells
from tests.unit.harness.runs import MODEL, evaluated

from belljar.errors import ContainmentBreach, HostError
from belljar.harness.boundary import LookAtSamples, controlled, look_at
from belljar.harness.evaluate import RunOutcome
from belljar.harness.provider import BelljarSandboxEnvironment
from belljar.harness.session import Session

TASK = """
from pathlib import Path
from inspect_ai import Task, eval, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def work():
    async def solve(state, generate):
        Path("solved").touch()
        await sandbox().exec(["sh", "-c", "pwd"])
        return state
    return solve

@solver
def without():
    async def solve(state, generate):
        Path("solved").touch()
        return state
    return solve

def one(**given):
    return Task(dataset=[Sample(id="s", input="x", **given)], solver=work())

@task
def plain():
    return one()
"""
AT_LOAD = (
    "\neval(Task(dataset=[Sample(input='x')], solver={solver}(), sandbox={sandbox!r}),"
    " model='mockllm/model', display='none', log_dir='nested')\n"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(here: Path, task: str, policy: str = "", cells: RecordedCells | None = None) -> RunOutcome:
    return evaluated(here, f"task.py@{task}", *MODEL, cells=cells, policy=policy)


class Other(SandboxEnvironment):
    exec = write_file = read_file = sample_cleanup = None  # type: ignore[assignment]


@pytest.mark.promise("1.9")
def test_another_provider_can_be_asked_but_not_used() -> None:
    """Reading a task or log that names one is no harm."""
    session, docker = Session(), {"type": "docker", "config": {"services": {}}}
    with controlled(session):
        local = registry.registry_find_sandboxenv("local")
        assert local.config_files() == LocalSandboxEnvironment.config_files()
        assert registry.registry_find_sandboxenv("docker").is_docker_compatible()
        assert SandboxEnvironmentSpec.model_validate(docker).type == "docker"
        assert session.stopped is None
        tasks = ("task_init", "task_init_environment")
        for use in ("sample_init", *tasks, "default_concurrency", "exec"):
            with pytest.raises(ContainmentBreach, match="LocalSandboxEnvironment"):
                getattr(local, use)
        assert session.stopped is not None
    assert registry.registry_find_sandboxenv("local") is LocalSandboxEnvironment


def test_the_hold_is_one_and_the_name_belljar_means_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider of that name that a task registers is not found."""
    monkeypatch.setattr(inspect_registry, "_registry", dict(inspect_registry._registry))

    @sandboxenv(name="belljar")
    class Impostor(LocalSandboxEnvironment):
        pass

    assert issubclass(Impostor, SandboxEnvironment)
    with controlled(Session()):
        assert registry.registry_find_sandboxenv("belljar") is BelljarSandboxEnvironment
        with pytest.raises(HostError, match="another evaluation"), controlled(Session()):
            pass
        assert registry.registry_find_sandboxenv("local") is not LocalSandboxEnvironment


@pytest.mark.promise("1.9")
def test_a_provider_that_makes_its_objects_in_its_own_way_is_held_too() -> None:
    """Its `__init__` or `__new__` does not call the base class's; afterwards it can be made."""

    class OwnInit(Other):
        def __init__(self, what: str) -> None:
            self.what = what

    class OwnNew(Other):
        def __new__(cls) -> OwnNew:
            return object.__new__(cls)

    for make in (Other, lambda: OwnInit("x"), OwnNew):
        session = Session()
        with controlled(session), pytest.raises(ContainmentBreach, match=r"Own|Other"):
            make()
        assert session.stopped is not None
    assert OwnInit("x").what == "x"
    OwnNew()
    Other()


@pytest.mark.promise("1.9")
def test_a_sample_that_can_not_be_looked_at_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was raised: Inspect goes on after any error of a hook but a limit's."""

    def load(*_: object, **__: object) -> None:
        raise RuntimeError("no")

    session = Session()
    data: Any = SimpleNamespace(summary=SimpleNamespace(id="s"))
    monkeypatch.setattr(Session, "default_policy", load)
    with controlled(session), pytest.raises(LimitExceededError):
        anyio.run(LookAtSamples().on_sample_attempt_start, data)
    assert isinstance(session.stopped, ContainmentBreach)


@pytest.mark.promise("1.9")
@pytest.mark.parametrize(("solver", "sandbox"), [("work", "local"), ("without", None)])
def test_an_evaluation_inside_the_loading_of_a_task(
    here: Path, solver: str, sandbox: str | None
) -> None:
    """It has no cells: with another sandbox, or with none, it stops the run before its solver."""
    with (here / "task.py").open("a") as file:
        file.write(AT_LOAD.format(solver=solver, sandbox=sandbox))
    cells = RecordedCells()
    with pytest.raises(ContainmentBreach) as caught:
        run(here, "plain", cells=cells)
    assert caught.value.exit_code == 2
    assert not cells.opened
    assert not (here / "solved").exists()


@pytest.mark.promise("1.9")
def test_a_sandbox_that_is_not_ours_ends_the_sample(here: Path) -> None:
    """The look at the start of each attempt is at what is really there."""
    other = SimpleNamespace(_sandbox=Other())
    session = Session()
    with controlled(session):
        with pytest.raises(ContainmentBreach, match="default"):
            look_at(session, {"default": other}, where="sample s")
        with pytest.raises(ContainmentBreach, match="no sandbox"):
            look_at(session, {}, where="sample s")
        ours = BelljarSandboxEnvironment.__new__(BelljarSandboxEnvironment)
        look_at(session, {"default": SimpleNamespace(_sandbox=ours)}, where="sample s")
    assert not LookAtSamples().enabled()


@pytest.mark.promise("1.9")
@pytest.mark.parametrize(
    "place",
    [
        "inspect_ai.util._sandbox.registry.registry_find",
        "inspect_ai.util._sandbox.registry.registry_find_sandboxenv",
        "inspect_ai._eval.task.sandbox.registry_find_sandboxenv",
        "belljar.harness.boundary.get_all_hooks",
        "inspect_ai.model._call_tools.call_tool",
        "inspect_ai.agent._bridge.sandbox.service.execute_host_tool",
    ],
)
def test_an_inspect_that_works_otherwise_is_refused(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the places that are held nothing runs."""
    is_gone = place.endswith(("registry_find", "execute_host_tool"))
    monkeypatch.setattr(place, None if is_gone else lambda *_: [])
    with pytest.raises(HostError, match="not known"), controlled(Session()):
        pass
    monkeypatch.undo()
    assert registry.registry_find_sandboxenv("local") is LocalSandboxEnvironment
