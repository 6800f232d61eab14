"""Puts cells in the place of the sandboxes that a loaded task and its samples name. Reads compose files; `compat`
decides.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inspect_ai.util import ComposeConfig, SandboxEnvironmentSpec
from pydantic import BaseModel

from belljar.compose.document import (
    as_document,
    beside,
    is_compose_name,
    is_dockerfile_name,
    read_document,
)
from belljar.compose.read import default_service
from belljar.differences import told
from belljar.errors import PolicyError
from belljar.harness.compat import NO_NETWORK, Refused, judge
from belljar.harness.config import BelljarConfig, beside_policy, check_below, of_compose, settled
from belljar.units import printable

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.dataset import Sample

OURS: Final = "belljar"


def adapt_task(task: Task, *, directory: Path, forced: bool) -> list[str]:
    """Give the task and each of its samples Belljar as sandbox; returns notes for the operator.

    `directory` is the task's own (relative paths and implicit files are found there); `forced`: the operator gave a
    policy, which settles everything but one thing: a task that wants no network has none.

    Raises:
        PolicyError: a sandbox that a cell can't stand in for. Nothing has run yet.
    """
    notes: list[str] = []
    task.sandbox, found = stand_in(task.sandbox, directory=directory, forced=forced, where=f"task {task.name}")
    notes += found
    for sample in _samples(task):
        where = f"task {task.name}, sample {sample.id}"
        if sample.sandbox is not None:
            sample.sandbox, found = stand_in(sample.sandbox, directory=directory, forced=forced, where=where)
            notes += found
        notes += _of_sample(sample.sandbox or task.sandbox, sample, where=where)
    return list(dict.fromkeys(notes))


def _of_sample(spec: SandboxEnvironmentSpec, sample: Sample, *, where: str) -> tuple[str, ...]:
    """What a compose file that asks for metadata means for this sample is refused now, not in the middle of the run."""
    metadata = {**(sample.metadata or {}), "__sample_id__": sample.id}
    return settled(spec.config, metadata, where=where)[1] if isinstance(spec.config, BelljarConfig) else ()


def _samples(task: Task) -> Iterator[Sample]:
    yield from task.dataset or ()


def stand_in(
    spec: SandboxEnvironmentSpec | None, *, directory: Path, forced: bool, where: str
) -> tuple[SandboxEnvironmentSpec, list[str]]:
    """The sandbox that replaces `spec`, with notes. Raises `PolicyError` when a cell can't."""
    if forced:
        return SandboxEnvironmentSpec(OURS, _under_operator(spec, directory)), []
    if spec is None:
        return SandboxEnvironmentSpec(OURS, beside_policy(directory)), []
    compose, dockerfile = _description(spec, directory)
    if spec.type == OURS and compose is None and not dockerfile:
        return SandboxEnvironmentSpec(OURS, _own_config(spec.config, directory)), []
    if compose is not None:
        config, said = of_compose(compose, beside_policy(directory), where=where)
        return SandboxEnvironmentSpec(OURS, config), list(said)
    judgement = judge(spec.type, has_config=spec.config is not None, compose=None, dockerfile=dockerfile)
    if isinstance(judgement, Refused):
        raise PolicyError(judgement.reason, where=printable(where), mend=judgement.mend)
    return SandboxEnvironmentSpec(OURS, beside_policy(directory)), list(told(judgement.differences))


def _under_operator(spec: SandboxEnvironmentSpec | None, directory: Path) -> BelljarConfig:
    """The operator's policy is not judged by the task's words, and not widened by them. It loses its network where they say that there is none."""
    try:
        compose = None if spec is None else _description(spec, directory)[0]
        closed = compose is not None and _wants_no_network(compose)
    except (PolicyError, ValueError):
        closed = True
    return BelljarConfig(network=NO_NETWORK if closed else "")


def _wants_no_network(compose: Mapping[str, Any]) -> bool:
    """By this one word, whatever else of the file a cell can't keep; what can't be told is taken for it. Raises `ValueError`."""
    services = compose.get("services")
    if not isinstance(services, Mapping) or not all(isinstance(each, Mapping) for each in services.values()):
        return True
    mode = str(services[default_service(services)].get("network_mode", "")) if services else "$"
    return mode == NO_NETWORK or "$" in mode


def _own_config(config: BaseModel | str | None, directory: Path) -> BelljarConfig:
    if isinstance(config, BelljarConfig):
        return config
    if config is None:
        return beside_policy(directory)
    path = (directory / str(config)).absolute()
    check_below(path, directory)
    return BelljarConfig(policy=str(path) if os.path.lexists(path) else str(config))


def _description(spec: SandboxEnvironmentSpec, directory: Path) -> tuple[dict[str, Any] | None, bool]:
    """The compose file that the sandbox means, parsed, or None; and whether it is built from a Dockerfile."""
    config = spec.config
    if isinstance(config, BaseModel):
        is_other = spec.type == OURS and not isinstance(config, ComposeConfig)
        return (None if is_other else as_document(config)), False
    if config is None:
        return _implicit(spec.type, directory)
    if is_dockerfile_name(str(config)):
        return None, True
    path = directory / str(config)
    check_below(path.absolute(), directory)
    is_compose = is_compose_name(str(config)) or (spec.type != OURS and path.suffix in {".yaml", ".yml"})
    return (read_document(path) if is_compose else None), False


def _implicit(kind: str, directory: Path) -> tuple[dict[str, Any] | None, bool]:
    """What Inspect finds beside a task whose sandbox has no configuration."""
    found = beside(directory)
    if kind == OURS:
        found = None if beside_policy(directory).policy else found
        return (read_document(found) if found else None), False
    if kind != "docker":
        return None, False
    return (read_document(found), False) if found else (None, (directory / "Dockerfile").is_file())
