"""Converts a task's sandbox request to a cell's configuration, or refuses it.

The policy of a task or sample is its own (`("belljar", "policy.yaml")`), or the file beside it; its
compose file is put on that. A sandbox beyond a cell's abilities is refused: the evaluation would
measure something else. `belljar.compose` names conversions.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_serializer

from belljar.compose.document import (
    DIRECTORY_KEY,
    READ_HERE,
    ServiceBuild,
    beside,
    builds_of,
    dockerfile_document,
    files_named_by,
    is_compose_name,
    is_dockerfile_name,
    read_document,
    services_of,
)
from belljar.compose.interpolate import METADATA_PREFIX, interpolate, literal, references
from belljar.compose.translate import Composed, read_compose
from belljar.compose.values import CannotKeepError
from belljar.dataclass import dataclass, field, replace
from belljar.differences import Difference, DifferenceKind
from belljar.errors import BelljarError, PolicyError
from belljar.policy.fields import wrong_fields
from belljar.policy.files import check_below
from belljar.policy.guarding import OWN_CELL
from belljar.policy.loaded import PRESETS, LoadedPolicy
from belljar.policy.merge import NO_NETWORK, TASK
from belljar.policy.network import Network
from belljar.policy.sections import Rights, TaskData
from belljar.policy.stand_ins import CellStandIn, ServiceProgram
from belljar.units import printable

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.util import SandboxEnvironmentSpec

OURS: Final = "belljar"
# Names of a policy beside a task.
POLICY_NAMES: Final = ("belljar.yaml", "belljar.yml")
_START_AGAIN: Final = (
    "`inspect eval-retry` hands over what the log says: start the task itself again (`belljar run "
    "TASK`), with --sample-id for the samples that failed"
)
_OWN_POLICY: Final = (
    "write a policy with the image that the task needs, and run it with"
    " `inspect eval --sandbox belljar:FILE`"
)
_M = TypeVar("_M", bound=BaseModel)


class BelljarConfig(BaseModel):
    """A sandbox configuration as Inspect logs it: a policy, its changes and differences.

    `policy`: a file or preset. `tier` can only raise it. From a compose file: `network`, `service`
    and `program` of the sample's cell, `data`, `builds`, `resources`. `compose`: a file that needs
    a sample's metadata. `is_generic`: the task wants a container, but names no image.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    policy: str = ""
    compose: dict[str, Any] | None = None
    is_generic: bool = False
    network: Network | Literal["none"] | None = None
    service: str = ""
    program: ServiceProgram | None = None
    data: TaskData | None = None
    builds: tuple[ServiceBuild, ...] = ()
    resources: tuple[tuple[str, str | int], ...] = ()
    image: str | None = None
    user: str | None = None
    workdir: str | None = None
    tier: str | None = None
    rights: Rights | None = None
    env: tuple[tuple[str, str], ...] = ()
    differences: tuple[Difference, ...] = ()

    @field_serializer("network", "program")
    def _as_written(self, value: object) -> object:
        # A section of a policy is logged in the words that it is read from.
        if not isinstance(value, BaseModel):
            return value
        return value.model_dump(mode="json", exclude_unset=True)

    def __hash__(self) -> int:
        # Fields that hold dicts leave a frozen model without a hash.
        return hash(json.dumps(self.model_dump(mode="json"), sort_keys=True))

    def asked(self) -> dict[str, Any]:
        """The compose file's fields, as a policy's."""
        names = ("image", "user", "workdir", "network", "rights")
        asked = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.resources:
            asked["resources"] = dict(self.resources)
        return asked | ({"env": dict(self.env)} if self.env else {})


class LoggedConfig(BaseModel):
    """Another version's logged configuration, read without making a cell."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)


def of_log(config: Mapping[str, Any]) -> BelljarConfig | LoggedConfig:
    """A configuration from one of Inspect's logs."""
    try:
        return BelljarConfig.model_validate_json(json.dumps(config))
    except ValidationError:
        return LoggedConfig.model_validate(config)


class TaskRefused(PolicyError):  # noqa: N818 - its name in `--json`
    """No cell can replace a task's sandbox; `differences`: refused items and others."""

    code = "task_refused"

    def __init__(
        self, what: str, *, where: str, hint: str, differences: tuple[Difference, ...] = ()
    ) -> None:
        super().__init__(what, where=printable(where), hint=hint)
        itself = Difference(kind=DifferenceKind.REFUSED, where=TASK, detail=what, hint=hint)
        self.differences = differences or (itself,)


@dataclass(frozen=True, slots=True)
class Preview:
    """One sample's sandbox; once previewed, its policy or error."""

    task: str
    sample: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)
    asked: BelljarConfig = field(default_factory=BelljarConfig)
    error: BelljarError | None = None
    policy: LoadedPolicy | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def where(self) -> str:
        """Its place in errors."""
        return f"task {self.task}, sample {self.sample}"


def as_config(config: BaseModel | str | None) -> BelljarConfig:
    """From what Inspect passes. Raises `PolicyError`."""
    if config is None:
        # Under `inspect eval --sandbox belljar` nobody says what the task itself asked for
        names = (word.partition("=")[0] for word in sys.argv[1:])
        replaced = "--sandbox" in names or "INSPECT_EVAL_SANDBOX" in os.environ
        return BelljarConfig(is_generic=replaced)
    if isinstance(config, BelljarConfig):
        return config
    from inspect_ai.util import SandboxEnvironmentSpec

    # Inspect's command line makes an absolute path of what follows `belljar:`, presets too.
    path = Path(str(config))
    is_preset = path.is_absolute() and path.name in PRESETS and not os.path.lexists(path)
    spec = SandboxEnvironmentSpec(OURS, path.name if is_preset else config)
    where = config if isinstance(config, str) else "the task's sandbox"
    return stand_in(spec, directory=Path.cwd(), where=where)  # Inspect works in the task's then


# ---- compose files


def named_document(path: Path) -> dict[str, Any] | None:
    """A compose file's or Dockerfile's content; None for other names."""
    if is_dockerfile_name(str(path)):
        return dockerfile_document(path.absolute())
    return read_document(path) if is_compose_name(str(path)) else None


def beside_policy(directory: Path) -> BelljarConfig:
    """The policy file beside a task, if any."""
    found = [directory / name for name in POLICY_NAMES if os.path.lexists(directory / name)]
    return BelljarConfig(policy=str(found[0].absolute()) if found else "")


def of_other(base: BelljarConfig, kind: str, *, has_config: bool, where: str) -> BelljarConfig:
    """`base` without a compose file. Raises `TaskRefused`."""
    if kind == "local":
        detail = "the task asks to run on this host: using a cell with the policy's image"
        fact = Difference(kind=DifferenceKind.CHANGED, where=TASK, key="sandbox", detail=detail)
        return base.model_copy(update={"differences": (*base.differences, fact)})
    if kind == "docker" or not has_config:
        return base.model_copy(update={"is_generic": True})
    what = f"the configuration of its sandbox {printable(kind)} can't be converted to a cell"
    raise TaskRefused(what, where=where, hint=_OWN_POLICY)


def of_compose(document: Mapping[str, Any], base: BelljarConfig, *, where: str) -> BelljarConfig:
    """`base` with a compose file, metadata later. Raises `TaskRefused`."""
    try:
        services_of(document)
        if references(document):
            # Inspect logs the configuration: only values that JSON has.
            whole = json.loads(json.dumps(document, default=str))
            return base.model_copy(update={"compose": whole})
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(error, where=where) from error
    return of_sample(document, {}, base, where=where)


def of_sample(
    compose: Mapping[str, Any],
    variables: Mapping[str, str],
    base: BelljarConfig,
    *,
    blanks: bool = False,
    where: str = "",
) -> BelljarConfig:
    """`base` for one sample; `blanks`: as `interpolate`. Raises `TaskRefused`."""
    seen: tuple[Difference, ...] = ()
    try:
        settled = interpolate(compose, variables, blanks=blanks)
        seen = settled.differences
        found = read_compose(settled.document, files_named_by(compose))
        builds = builds_of({**compose, **settled.document})
        changes = {**_changes(found), "builds": builds, "compose": None}
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(error, seen, where=where) from error
    changes["differences"] = (*base.differences, *seen, *found.differences)
    return base.model_copy(update=changes)


def _refused(error: Exception, others: Iterable[Difference] = (), *, where: str) -> TaskRefused:
    what = printable(str(error), max_chars=1000)
    if not isinstance(error, CannotKeepError):
        return TaskRefused(what, where=where, hint=_OWN_POLICY)
    error.add(others)
    hint = error.hint or _OWN_POLICY
    return TaskRefused(what, where=where, hint=hint, differences=error.differences)


def _changes(found: Composed) -> dict[str, Any]:
    # A `$` that is left is the file's own text, and no reference for a policy's `env`.
    changes = {**found.changes, "rights": _rights(found.changes)}
    if "env" in changes:
        changes["env"] = tuple((name, literal(value)) for name, value in changes["env"].items())
    if resources := changes.pop("resources", None):
        changes["resources"] = tuple(sorted(resources.items()))
    if found.network is not None:
        stand_ins: dict[str, dict[str, Any]] = {}
        for name, words in found.network["stand_ins"].items():
            stand_ins[name] = {**words, "rights": _rights(words)}
            if env := words.get("env"):
                stand_ins[name]["env"] = {key: literal(value) for key, value in env.items()}
        changes["network"] = _section(Network, {**found.network, "stand_ins": stand_ins})
    elif found.is_apart:
        changes["network"] = NO_NETWORK
    if found.data is not None:
        changes["data"] = found.data
    changes["program"] = _section(ServiceProgram, found.program)
    return changes | ({"service": found.service} if found.service != OWN_CELL else {})


def _section(model: type[_M], words: Mapping[str, Any]) -> _M:
    try:
        return model.model_validate(words, strict=False)
    except ValidationError as error:
        raise CannotKeepError(f"a cell can't be so: {wrong_fields(error)}") from None


def _rights(words: Mapping[str, Any]) -> Rights:
    # As in a container: set-user-ID programs work unless new privileges are refused.
    return Rights.model_validate({"setuid_programs": "auto", **words.get("rights", {})})


# ---- samples


def metadata_variables(metadata: Mapping[str, object]) -> dict[str, str]:
    """Metadata as Inspect's variables: `SAMPLE_METADATA_<KEY>`, spaces as underscores."""
    return {
        f"{METADATA_PREFIX}{key.replace(' ', '_').upper()}": str(value)
        for key, value in metadata.items()
    }


def shaping(config: BelljarConfig, metadata: Mapping[str, object]) -> dict[str, str]:
    """The metadata that decides images and cells."""
    if config.compose is None:
        return {}
    variables = metadata_variables(metadata)
    try:
        names = interpolate(config.compose, variables, blanks=True).shaping
    except (TypeError, ValueError, RecursionError):  # refused later, with its reason
        names = references(config.compose)
    return {name: variables[name] for name in sorted(names) if name in variables}


def settled(
    config: BelljarConfig,
    metadata: Mapping[str, object] | None,
    *,
    where: str = "the task's compose file",
) -> BelljarConfig:
    """With the compose file for a sample's metadata."""
    document = config.compose
    if document is None:
        return config
    _check_read_here([document.get(DIRECTORY_KEY, "")])
    given = os.environ if metadata is None else metadata_variables(metadata)
    known = {name: each for name, each in given.items() if name.startswith(METADATA_PREFIX)}
    return of_sample(document, known, config, blanks=metadata is None, where=where)


def _check_read_here(directories: Iterable[str]) -> None:
    # A forged log would have any file of this host copied into a cell or image.
    for directory in directories:
        if directory and directory not in READ_HERE:
            raise PolicyError(
                f"it takes files of {printable(directory)}, where no file of a task was read: a"
                " configuration from a log has no say in that",
                where="the task's sandbox",
                hint=_START_AGAIN,
            )


def check_own_files(ours: BelljarConfig) -> None:
    """Raise `PolicyError` for more than a compose file asks for."""
    cells = ours.data.cells if ours.data is not None else {}
    if ours.data is not None and any(cell.files for cell in cells.values()):
        _check_read_here([ours.data.root or "."])
    _check_read_here(each.root or "." for each in ours.builds)
    services = ours.network.stand_ins if isinstance(ours.network, Network) else {}
    is_plain = all(isinstance(each, CellStandIn) and not each.files for each in services.values())
    # Data of any other cell would reach one of the operator's policy by its name.
    if not is_plain or cells.keys() - {OWN_CELL, *services}:
        what = "its network or data are of more than the services of a compose file"
        hint = "put stand-ins and files into a policy, and name that"
        raise PolicyError(what, where="the task's sandbox", hint=hint)


# ---- tasks of `belljar run`, and samples of `inspect eval`


def adapt_task(task: Task, *, directory: Path) -> list[Preview]:
    """Give all samples Belljar as sandbox; return each one's, or its error."""
    from inspect_ai.util import SandboxEnvironmentSpec

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
    made: list[Preview] = []
    for sample in task.dataset or ():
        each = Preview(task.name, str(sample.id))
        written = sample.sandbox
        found = default if written is None else read(written, where=each.where)
        refused = found if isinstance(found, PolicyError) else None
        config = found if isinstance(found, BelljarConfig) else BelljarConfig()
        metadata = {**(sample.metadata or {}), "__sample_id__": sample.id}
        made.append(replace(each, metadata=metadata, asked=config, error=refused))
        if written is not None:
            sample.sandbox = SandboxEnvironmentSpec(OURS, config)
    of_task = default if isinstance(default, BelljarConfig) else BelljarConfig()
    task.sandbox = SandboxEnvironmentSpec(OURS, of_task)
    return made


def stand_in(spec: SandboxEnvironmentSpec | None, *, directory: Path, where: str) -> BelljarConfig:
    """The sandbox's replacement. Raises `PolicyError`."""
    from inspect_ai.util import ComposeConfig

    base = beside_policy(directory)
    if spec is None:
        return base
    kind, config, document = spec.type, spec.config, None
    if isinstance(config, BaseModel):
        if kind != OURS or isinstance(config, ComposeConfig):
            document = config.model_dump(by_alias=True, exclude_none=True)
            # A task's own words must not name a directory to read files from.
            document.pop(DIRECTORY_KEY, None)
    elif isinstance(config, str):
        path = (directory / config).absolute()
        check_below(path, directory)
        document = named_document(path)
        if document is None and kind == OURS:
            return BelljarConfig(policy=str(path) if os.path.lexists(path) else config)
        if document is None and path.suffix in {".yaml", ".yml"}:
            document = read_document(path)
    elif config is None and (kind == "docker" or (kind == OURS and not base.policy)):
        path = directory.absolute() / "Dockerfile"
        if (found := beside(directory)) is not None:  # as Inspect finds it
            document = read_document(found)
        elif os.path.lexists(path):
            document = dockerfile_document(path)
    if document is not None:
        return of_compose(document, base, where=where)
    if kind != OURS:
        return of_other(base, kind, has_config=config is not None, where=where)
    if config is None or isinstance(config, BelljarConfig):
        return config or base
    what = f"a {type(config).__name__} is another version's configuration, or not Belljar's"
    raise PolicyError(what, where=where, hint=_START_AGAIN)


def of_active_sample(
    config: BaseModel | str | None, directories: Iterable[Path]
) -> BaseModel | str | None:
    """The starting sample's own sandbox, where Inspect dropped or replaced its configuration.

    Inspect does so under `--sandbox belljar` for an unknown file, or another provider's.
    `directories`: of the run's tasks. Raises `PolicyError` when no cell fits.
    """
    from inspect_ai.log._samples import sample_active
    from inspect_ai.util import SandboxEnvironmentSpec

    active = sample_active()
    written = active.sample.sandbox if active is not None else None
    if active is None or not isinstance(written, SandboxEnvironmentSpec):
        return config
    own, where = written.config, f"sample {active.sample.id}"
    if written.type == OURS or (config is not None and (own is None or own == config)):
        return config
    if own is None:  # nothing is beside its task, or that would be `config`
        return of_other(BelljarConfig(), written.type, has_config=False, where=where)
    found = [each for each in dict.fromkeys(directories) if os.path.lexists(each / str(own))]
    if isinstance(own, str) and not Path(own).is_absolute() and len(found) > 1:
        what = f"{printable(own)} is in the directories of several tasks"
        hint = "run one task after the other, or name the file by its whole path"
        raise PolicyError(what, where=where, hint=hint)
    return stand_in(written, directory=found[0] if found else Path.cwd(), where=where)
