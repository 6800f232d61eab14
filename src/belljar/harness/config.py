"""Chooses the policy of a sample's cell.

The first of: the task's or sample's own (`("belljar", "policy.yaml")`), `$BELLJAR_POLICY`, preset
`high`; then its compose file. `belljar run --policy` states the isolation around that.
`$BELLJAR_POLICY` is a floor: nothing of a task's is looser.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Unpack

from pydantic import BaseModel, ConfigDict, ValidationError, field_serializer

from belljar.compose.data import ServiceBuild
from belljar.compose.document import (
    DIRECTORY_KEY,
    as_document,
    dockerfile_document,
    is_compose_name,
    is_dockerfile_name,
    read_document,
    was_read_here,
)
from belljar.compose.interpolate import MAX_CHARACTERS, METADATA_PREFIX
from belljar.compose.keys import GENERIC_DETAIL, GENERIC_IMAGE, INSPECTS_IMAGE
from belljar.dataclass import dataclass, replace
from belljar.differences import Difference, DifferenceKind
from belljar.errors import PolicyError
from belljar.harness.compat import Honoured, judge_compose, judge_for_sample, shaping_variables
from belljar.harness.operator import (
    POLICY_VARIABLE,
    Operator,
    OperatorOptions,
    permitted,
    read_operator,
)
from belljar.policy.files import check_below
from belljar.policy.load import resolve_policy, with_changes
from belljar.policy.loaded import PRESETS, LoadedPolicy, with_tier
from belljar.policy.merge import TASK, above_floor, under_policy
from belljar.policy.network import Network
from belljar.policy.sections import Rights, TaskData
from belljar.policy.stand_ins import CellStandIn, ServiceProgram
from belljar.units import printable

# Who says nothing gets a strict wall: looser ones are asked for.
DEFAULT_POLICY: Final = "high"
DEFAULT_IMAGE: Final = "default"
# Names of a policy beside a task.
POLICY_NAMES: Final = ("belljar.yaml", "belljar.yml")
_NAME: Final = METADATA_PREFIX + r"[A-Za-z0-9_]+"
# `$$` means a dollar sign before our names alone: others are left to the program.
_REFERENCE: Final = re.compile(
    rf"\$\$(?=\{{?{_NAME})|\$\{{({_NAME})(?:(:?-)([^{{}}]*))?\}}|\$({_NAME})"
)


_START_AGAIN: Final = (
    "`inspect eval-retry` hands over what the log says: start the task itself again (`belljar run "
    "TASK`), with --sample-id for the samples that failed"
)


class BelljarConfig(BaseModel):
    """A sandbox configuration as Inspect logs it: a policy and changes to it, and what differs.

    `policy`: a file or preset. `tier` can only raise it. From a compose file: `network`, `service`
    and `program` of the sample's cell, `data`, `builds`, `resources`. `compose`: a file that needs
    a sample's metadata. `is_generic`: the task asks for a container without naming an image.
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
    """A configuration that another version logged: a log that holds one is read, no cell made."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)


def of_log(config: Mapping[str, Any]) -> BelljarConfig | LoggedConfig:
    """A configuration from one of Inspect's logs."""
    try:
        return BelljarConfig.model_validate_json(json.dumps(config))
    except ValidationError:
        return LoggedConfig.model_validate(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePolicy:
    """The parts that one sample's cell is made of.

    `service`, `program`, `builds`: of a compose file. `differences`: from the task and the
    operator's policy.
    """

    policy: LoadedPolicy
    service: str
    program: ServiceProgram | None
    builds: tuple[ServiceBuild, ...]
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSandbox:
    """One sample's sandbox, or the error refusing it."""

    task: str
    sample: str
    metadata: Mapping[str, object]
    config: BelljarConfig
    error: PolicyError | None = None


def as_config(config: BaseModel | str | None) -> BelljarConfig:
    """From what Inspect passes. Raises `PolicyError`."""
    if config is None:
        # Under `inspect eval --sandbox belljar` nobody says what the task itself asked for
        names = (word.partition("=")[0] for word in sys.argv[1:])
        replaced = "--sandbox" in names or "INSPECT_EVAL_SANDBOX" in os.environ
        return BelljarConfig(is_generic=replaced)
    if isinstance(config, BelljarConfig):
        return config
    if not isinstance(config, str):
        from inspect_ai.util import ComposeConfig

        if isinstance(config, ComposeConfig):
            return of_compose(as_document(config), BelljarConfig(), where="the task's sandbox")
        is_logged = isinstance(config, LoggedConfig)
        raise PolicyError(
            "a log's sandbox configuration is of another version of Belljar"
            if is_logged
            else f"a sandbox configuration of type {type(config).__name__} is not Belljar's",
            where="the task's sandbox",
            hint=_START_AGAIN
            if is_logged
            else 'name a policy instead: sandbox=("belljar", "policy.yaml")',
        )
    path = Path(config)
    check_below(path.absolute(), Path.cwd())  # Inspect works in the task's directory then
    if (document := named_document(path)) is not None:
        return of_compose(document, beside_policy(path.parent), where=str(path))
    # Inspect's command line makes an absolute path of what follows `belljar:`, presets too.
    is_preset = path.is_absolute() and path.name in PRESETS and not os.path.lexists(path)
    return BelljarConfig(policy=path.name if is_preset else config)


def of_compose(document: Mapping[str, Any], base: BelljarConfig, *, where: str) -> BelljarConfig:
    """`base` with a compose file. Raises `TaskRefused`."""
    return judged(base, judge_compose(document, where=where))


def named_document(path: Path) -> dict[str, Any] | None:
    """Return the content of a compose file or Dockerfile; None for another name."""
    if is_dockerfile_name(str(path)):
        return dockerfile_document(path.absolute())
    return read_document(path) if is_compose_name(str(path)) else None


def judged(config: BelljarConfig, judgement: Honoured) -> BelljarConfig:
    """`config` with what a task's sandbox asks for."""
    differences = (*config.differences, *judgement.differences)
    changes = {"compose": None, **judgement.changes, "differences": differences}
    return config.model_copy(update=changes)


def beside_policy(directory: Path) -> BelljarConfig:
    """The policy file beside a task, if any."""
    found = [directory / name for name in POLICY_NAMES if os.path.lexists(directory / name)]
    return BelljarConfig(policy=str(found[0].absolute()) if found else "")


def settled(
    config: BelljarConfig,
    metadata: Mapping[str, object] | None,
    *,
    where: str = "the task's compose file",
) -> BelljarConfig:
    """Resolve the compose file for a sample's metadata; None: what Inspect defines so far.

    Raises `TaskRefused` for what a cell can't keep.
    """
    document = config.compose
    if document is None:
        return config
    _check_read_here([document.get(DIRECTORY_KEY, "")])
    known = dict(os.environ) if metadata is None else metadata_variables(metadata)
    known = {name: each for name, each in known.items() if name.startswith(METADATA_PREFIX)}
    return judged(config, judge_for_sample(document, known, blanks=metadata is None, where=where))


def _check_read_here(directories: Iterable[str]) -> None:
    # A log may be forged, and would have any file of this host copied into a cell or image.
    for directory in directories:
        if directory and not was_read_here(directory):
            raise PolicyError(
                f"it takes files of {printable(directory)}, where no file of a task was read: a"
                " configuration from a log has no say in that",
                where="the task's sandbox",
                hint=_START_AGAIN,
            )


def _check_own_files(ours: BelljarConfig) -> None:
    cells = ours.data.cells.values() if ours.data is not None else ()
    if ours.data is not None and any(cell.files for cell in cells):
        _check_read_here([ours.data.root or "."])
    _check_read_here(each.root or "." for each in ours.builds)
    services = ours.network.stand_ins.values() if isinstance(ours.network, Network) else ()
    if any(not isinstance(each, CellStandIn) or each.files for each in services):
        what = "its network holds more than the services of a compose file"
        hint = "put stand-ins and files into a policy, and name that"
        raise PolicyError(what, where="the task's sandbox", hint=hint)


def shaping(config: BelljarConfig, metadata: Mapping[str, object]) -> dict[str, str]:
    """A sample's variables beyond its cells' environment."""
    if config.compose is None:
        return {}
    return shaping_variables(config.compose, metadata_variables(metadata))


def load(
    config: BaseModel | str | None,
    *,
    metadata: Mapping[str, object] | None = None,
    **options: Unpack[OperatorOptions],
) -> LoadedPolicy:
    """A configuration's policy. Raises `PolicyError`."""
    return within(settled(as_config(config), metadata), read_operator(**options)).policy


def within(ours: BelljarConfig, operator: Operator) -> SamplePolicy:
    """A settled configuration under the operator's word. Raises `PolicyError`."""
    _check_own_files(ours)
    asked = ours.asked()
    if operator.run_policy:
        own = resolve_policy(ours.policy) if ours.policy else None
        run_policy = resolve_policy(operator.run_policy)
        made, found = under_policy(run_policy, own, asked)
    else:
        # The variable as it is now comes late: a task's `.env` file may set it.
        named = ours.policy or operator.policy or os.environ.get(POLICY_VARIABLE)
        base = resolve_policy(named or DEFAULT_POLICY)
        floor = resolve_policy(operator.policy) if operator.policy else None
        made, found = above_floor(base, asked, ours.tier, floor)
    if ours.is_generic:
        made, of_image = _generic(made)
        found = (*found, of_image)
    is_named = bool(operator.run_policy or operator.policy)
    done = permitted(with_tier(made, operator.tier), operator, is_named=is_named)
    settings, risk = operator.settings, made.policy.risk
    if risk < settings.least_risk:
        where = printable(settings.least_risk_from)
        detail = f"`{risk}` is raised to `{settings.least_risk}`, as {where} says"
        found = (*found, _changed("policy", "risk", detail))
    return SamplePolicy(
        policy=replace(done, data=ours.data),
        service=ours.service,
        program=ours.program,
        builds=ours.builds,
        differences=(*ours.differences, *found),
    )


def _generic(made: LoadedPolicy) -> tuple[LoadedPolicy, Difference]:
    """The policy of a task that asks for plain Docker: its image is the policy's or `inspect`.

    All presets name `default`, so a policy counts as naming an image only where it names another.
    """
    detail = f"the policy's image `{made.policy.image}` instead of `{INSPECTS_IMAGE}`"
    if made.policy.image == DEFAULT_IMAGE:
        made, detail = with_changes(made, {"image": GENERIC_IMAGE}), GENERIC_DETAIL
    return made, _changed(TASK, "image", printable(detail, max_chars=400))


def _changed(where: str, key: str, detail: str) -> Difference:
    return Difference(kind=DifferenceKind.CHANGED, where=where, key=key, detail=detail)


def sample_policy(
    config: BaseModel | str | None,
    metadata: Mapping[str, object],
    **options: Unpack[OperatorOptions],
) -> SamplePolicy:
    """One sample's policy, with metadata. Raises `PolicyError`."""
    made = within(settled(as_config(config), metadata), read_operator(**options))
    return replace(made, policy=for_sample(made.policy, metadata))


def metadata_variables(metadata: Mapping[str, object]) -> dict[str, str]:
    """Metadata as Inspect's variables: `SAMPLE_METADATA_<KEY>`, spaces as underscores."""
    return {
        f"{METADATA_PREFIX}{key.replace(' ', '_').upper()}": str(value)
        for key, value in metadata.items()
    }


def for_sample(loaded: LoadedPolicy, metadata: Mapping[str, object]) -> LoadedPolicy:
    """Expand metadata in `env`. Raises `PolicyError`."""
    variables = metadata_variables(metadata)
    changes: dict[str, Any] = {}
    env = expanded(loaded.policy.env, variables, where="env")
    if env != dict(loaded.policy.env):
        changes["env"] = env
    network = loaded.policy.network
    if network is not None:
        stand_ins = dict(network.stand_ins)
        for name, item in network.stand_ins.items():
            written: Mapping[str, str] = getattr(item, "env", {})
            env = expanded(written, variables, where=f"network.stand_ins.{name}.env")
            if env != dict(written):
                stand_ins[name] = item.model_copy(update={"env": env})
        if stand_ins != dict(network.stand_ins):
            changes["network"] = network.model_copy(update={"stand_ins": stand_ins})
    return with_changes(loaded, changes) if changes else loaded


def expanded(env: Mapping[str, str], variables: Mapping[str, str], *, where: str) -> dict[str, str]:
    """Replace `$NAME`, `${NAME}` and `${NAME:-default}` for `SAMPLE_METADATA_` names.

    `$$` keeps such a name; other dollar signs are left. Raises `PolicyError` for missing metadata,
    and beyond `MAX_CHARACTERS` of all values together.
    """
    room = MAX_CHARACTERS

    def put(match: re.Match[str]) -> str:
        nonlocal room
        if match[0] == "$$":
            return "$"
        name, operator, default = match[1] or match[4], match[2], match[3]
        found = variables.get(name)
        if found is None or (not found and operator == ":-"):
            if not operator:
                hint = f"add it to the sample's metadata, or give a default: ${{{name}:-…}}"
                what = f"{name} is not in this sample's metadata"
                raise PolicyError(what, where=where, hint=hint)
            return default
        room -= len(found)
        if room < 0:
            what = f"a sample's metadata makes more than {MAX_CHARACTERS:,} characters of it"
            raise PolicyError(what, where=where, hint="give large data as a file of the sample")
        return found

    return {name: _REFERENCE.sub(put, value) for name, value in env.items()}
