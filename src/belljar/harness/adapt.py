"""Replaces a loaded task's sandboxes with cells."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inspect_ai.util import ComposeConfig, SandboxEnvironmentSpec
from pydantic import BaseModel

from belljar.compose.document import as_document, beside, dockerfile_document, read_document
from belljar.dataclass import replace
from belljar.errors import PolicyError
from belljar.harness.compat import judge
from belljar.harness.config import (
    BelljarConfig,
    SampleSandbox,
    as_config,
    beside_policy,
    judged,
    named_document,
    of_compose,
    settled,
)
from belljar.policy.files import check_below
from belljar.units import printable

if TYPE_CHECKING:
    from inspect_ai import Task

OURS: Final = "belljar"


def adapt_task(task: Task, *, directory: Path) -> list[SampleSandbox]:
    """Give the task and its samples Belljar as sandbox; returns each sample's.

    `directory` is the task's own. A refused sandbox is its samples' error.
    """
    known: dict[tuple[str, str], BelljarConfig | PolicyError] = {}

    def read(spec: SandboxEnvironmentSpec | None, *, where: str) -> BelljarConfig | PolicyError:
        config = spec.config if spec is not None else None
        text = config.model_dump_json() if isinstance(config, BaseModel) else repr(config)
        key = (spec.type if spec is not None else "", text)
        if key not in known:
            try:
                known[key] = stand_in(spec, directory=directory, where=where)
            except PolicyError as error:
                known[key] = error
        return known[key]

    default = read(task.sandbox, where=f"task {task.name}")
    made: list[SampleSandbox] = []
    for sample in task.dataset or ():
        where = f"task {task.name}, sample {sample.id}"
        written = sample.sandbox
        found = default if written is None else read(written, where=where)
        metadata = {**(sample.metadata or {}), "__sample_id__": sample.id}
        if isinstance(found, BelljarConfig):
            try:
                settled(found, metadata, where=where)  # now, not in the middle of the run
            except PolicyError as error:
                found = error
        sandbox = SampleSandbox(
            task=task.name, sample=str(sample.id), metadata=metadata, config=BelljarConfig()
        )
        if isinstance(found, PolicyError):
            made.append(replace(sandbox, error=found))
            continue
        made.append(replace(sandbox, config=found))
        if written is not None:
            sample.sandbox = SandboxEnvironmentSpec(OURS, found)
    task.sandbox = SandboxEnvironmentSpec(
        OURS, default if isinstance(default, BelljarConfig) else BelljarConfig()
    )
    return made


def stand_in(spec: SandboxEnvironmentSpec | None, *, directory: Path, where: str) -> BelljarConfig:
    """The sandbox's replacement. Raises `PolicyError`."""
    base = beside_policy(directory)
    if spec is None:
        return base
    config = spec.config
    if (compose := _description(spec, directory)) is not None:
        return of_compose(compose, base, where=where)
    if spec.type != OURS:
        return judged(base, judge(spec.type, has_config=config is not None, where=where))
    if config is None:
        return base
    if isinstance(config, BaseModel):
        return as_config(config)
    path = (directory / str(config)).absolute()
    check_below(path, directory)
    return BelljarConfig(policy=str(path) if os.path.lexists(path) else str(config))


def of_active_sample(
    config: BaseModel | str | None, directories: Iterable[Path]
) -> BaseModel | str | None:
    """The starting sample's own sandbox, where Inspect dropped or replaced its configuration.

    Inspect does so under `--sandbox belljar` for an unknown file, or another provider's.
    `directories`: of the run's tasks. Raises `PolicyError` when no cell fits.
    """
    from inspect_ai.log._samples import sample_active

    active = sample_active()
    written = active.sample.sandbox if active is not None else None
    if active is None or not isinstance(written, SandboxEnvironmentSpec):
        return config
    return brought(written, config, directories=directories, where=f"sample {active.sample.id}")


def brought(
    written: SandboxEnvironmentSpec,
    config: BaseModel | str | None,
    *,
    directories: Iterable[Path],
    where: str,
) -> BaseModel | str | None:
    """A sample's own sandbox, as Inspect resolved it."""
    own = written.config
    if written.type == OURS or (config is not None and (own is None or own == config)):
        return config
    if own is None:  # nothing is beside its task, or that would be `config`
        return judged(BelljarConfig(), judge(written.type, has_config=False, where=where))
    found = [each for each in dict.fromkeys(directories) if os.path.lexists(each / str(own))]
    if isinstance(own, str) and not Path(own).is_absolute() and len(found) > 1:
        what = f"{printable(own)} is in the directories of several tasks"
        hint = "run one task after the other, or name the file by its whole path"
        raise PolicyError(what, where=where, hint=hint)
    return stand_in(written, directory=found[0] if found else Path.cwd(), where=where)


def _description(spec: SandboxEnvironmentSpec, directory: Path) -> dict[str, Any] | None:
    """The sandbox's compose file, parsed or generated."""
    config = spec.config
    if isinstance(config, BaseModel):
        is_other = spec.type == OURS and not isinstance(config, ComposeConfig)
        return None if is_other else as_document(config)
    if config is None:
        is_ours = spec.type == OURS and not beside_policy(directory).policy
        if spec.type != "docker" and not is_ours:
            return None
        if (found := beside(directory)) is not None:  # as Inspect finds it
            return read_document(found)
        path = directory.absolute() / "Dockerfile"
        return dockerfile_document(path) if os.path.lexists(path) else None
    path = directory / str(config)
    check_below(path.absolute(), directory)
    document = named_document(path)
    is_compose = document is None and spec.type != OURS and path.suffix in {".yaml", ".yml"}
    return read_document(path) if is_compose else document
