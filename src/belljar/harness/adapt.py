"""Puts cells in the place of the sandboxes that a loaded task and its samples name. Reads compose files; `compat`
decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inspect_ai.util import SandboxEnvironmentSpec
from pydantic import BaseModel

from belljar.errors import PolicyError
from belljar.harness.compat import Refused, judge
from belljar.harness.config import BelljarConfig
from belljar.units import printable

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.dataset import Sample

OURS: Final = "belljar"
_COMPOSE_NAMES: Final = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_POLICY_NAMES: Final = ("belljar.yaml", "belljar.yml")
_MAX_COMPOSE_BYTES: Final = 1 << 20


def adapt_task(task: Task, *, directory: Path, forced: bool) -> list[str]:
    """Give the task and each of its samples Belljar as sandbox; returns notes for the operator.

    `directory` is the task's own (relative paths and implicit files are found there); `forced`: the operator gave a
    policy, which settles everything.

    Raises:
        PolicyError: a sandbox that a cell can't stand in for. Nothing has run yet.
    """
    notes: list[str] = []
    task.sandbox, found = stand_in(task.sandbox, directory=directory, forced=forced, where=f"task {task.name}")
    notes += found
    for sample in _samples(task):
        if sample.sandbox is not None:
            sample.sandbox, found = stand_in(
                sample.sandbox, directory=directory, forced=forced, where=f"task {task.name}, sample {sample.id}"
            )
            notes += found
    return list(dict.fromkeys(notes))


def _samples(task: Task) -> Iterator[Sample]:
    yield from task.dataset or ()


def stand_in(
    spec: SandboxEnvironmentSpec | None, *, directory: Path, forced: bool, where: str
) -> tuple[SandboxEnvironmentSpec, list[str]]:
    """The sandbox that replaces `spec`, with notes. Raises `PolicyError` when a cell can't."""
    if forced:
        return SandboxEnvironmentSpec(OURS, BelljarConfig()), []
    if spec is None:
        return SandboxEnvironmentSpec(OURS, _implicit_policy(directory)), []
    if spec.type == OURS:
        return SandboxEnvironmentSpec(OURS, _own_config(spec.config, directory)), []
    compose, dockerfile = _description(spec, directory)
    judgement = judge(spec.type, has_config=spec.config is not None, compose=compose, dockerfile=dockerfile)
    if isinstance(judgement, Refused):
        raise PolicyError(judgement.reason, where=printable(where), mend=judgement.mend)
    base = _implicit_policy(directory)
    return SandboxEnvironmentSpec(OURS, base.model_copy(update=dict(judgement.changes))), list(judgement.notes)


def _own_config(config: BaseModel | str | None, directory: Path) -> BelljarConfig:
    if isinstance(config, BelljarConfig):
        return config
    if config is None:
        return _implicit_policy(directory)
    path = directory / str(config)
    return BelljarConfig(policy=str(path.resolve()) if path.exists() else str(config))


def _implicit_policy(directory: Path) -> BelljarConfig:
    found = next((directory / name for name in _POLICY_NAMES if (directory / name).is_file()), None)
    return BelljarConfig(policy=str(found.resolve()) if found else "")


def _description(spec: SandboxEnvironmentSpec, directory: Path) -> tuple[dict[str, Any] | None, bool]:
    """The compose file that the sandbox means, parsed, or None; and whether it is built from a Dockerfile."""
    config = spec.config
    if isinstance(config, BaseModel):
        return config.model_dump(by_alias=True, exclude_none=True), False
    if config is None:
        if spec.type != "docker":
            return None, False
        implicit = next((directory / name for name in _COMPOSE_NAMES if (directory / name).is_file()), None)
        return (_read_compose(implicit), False) if implicit else (None, (directory / "Dockerfile").is_file())
    path = directory / str(config)
    if "Dockerfile" in {path.stem, path.suffix.removeprefix(".")}:
        return None, True
    return (_read_compose(path) if path.suffix in {".yaml", ".yml"} else None), False


def _read_compose(path: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        with path.open("rb") as file:
            parsed = YAML(typ="safe", pure=True).load(file.read(_MAX_COMPOSE_BYTES))
    except (OSError, YAMLError, ValueError) as error:
        raise PolicyError(
            f"can't be read: {printable(str(error), max_chars=300)}", where=str(path), mend="mend the compose file"
        ) from error
    if not isinstance(parsed, dict):
        raise PolicyError("is not a compose file", where=str(path), mend="mend the compose file")
    return parsed
