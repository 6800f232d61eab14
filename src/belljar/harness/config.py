"""Which policy a sample's cell gets: from what Inspect hands us to a `LoadedPolicy`. Reads policy files, decides
purely.

Order, first hit wins: the policy the operator gave to `belljar run --policy`; the task's or sample's own (`("belljar",
"policy.yaml")`); `$BELLJAR_POLICY`; the preset `high`. What a compose file says is put on top of it; but from the policy of `--policy` a task can
only take the network away. `$BELLJAR_POLICY` is a floor too: a task's own policy, and its compose file, is used as far as it is nowhere looser.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict

from belljar.compose.document import as_document, is_compose_name, is_dockerfile_name, read_document
from belljar.compose.interpolate import MAX_CHARACTERS, METADATA_PREFIX
from belljar.differences import told
from belljar.errors import PolicyError
from belljar.harness.compat import DOCKERFILE, NO_NETWORK, Refused, judge_compose, judge_for_sample, shaping_variables
from belljar.harness.operator import POLICY_VARIABLE, Operator, permitted, read_operator
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy import LoadedPolicy
    from belljar.policy.stand_ins import StandIn

DEFAULT_POLICY: Final = "high"
_TAKEN_AWAY: Final = "the task's compose file has `network_mode: none`: the network of the policy is taken away"
_REPLACED: Final = "the task's compose file has several services: they take the place of the policy's network, whose stand-ins and upstreams are not there"
POLICY_NAMES: Final = ("belljar.yaml", "belljar.yml")
"""What a policy beside a task is called."""
_NAME: Final = METADATA_PREFIX + r"[A-Za-z0-9_]+"
_REFERENCE: Final = re.compile(rf"\$\$(?=\{{?{_NAME})|\$\{{({_NAME})(?:(:?-)([^{{}}]*))?\}}|\$({_NAME})")


class BelljarConfig(BaseModel):
    """A sandbox configuration as Inspect keeps it in its log: a policy and what is changed in it.

    `policy` is a file or a preset, "" for the default. The other fields, when given, replace the policy's field of the
    same name; `tier` can only raise it. The rest comes from a compose file: `network` is JSON, in a policy's words: what several services
    mean; or `none`; `resources` are those that it sets; `service` is the name of the one that the sample works in, and `program`, JSON in a target
    cell's words, what runs in it. `compose` is a whole file, as JSON, that asks for a sample's metadata: what it means is known with the sample.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str = ""
    compose: str = ""
    network: str = ""
    service: str = ""
    program: str = ""
    resources: tuple[tuple[str, str | int], ...] = ()
    image: str | None = None
    user: str | None = None
    workdir: str | None = None
    tier: str | None = None
    env: tuple[tuple[str, str], ...] = ()

    def changes(self) -> dict[str, Any]:
        """The policy fields this configuration replaces."""
        given = {"image": self.image, "user": self.user, "workdir": self.workdir}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.network:
            changes["network"] = self.network if self.network == NO_NETWORK else json.loads(self.network)
        return changes


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePolicy:
    """What one sample's cell is made of: its policy; `is_shared`: every sample of the configuration has the same; the `service` of a compose file, and its `program`."""

    policy: LoadedPolicy
    is_shared: bool
    service: str
    program: str


def as_config(config: BaseModel | str | None) -> BelljarConfig:
    """What Inspect hands a provider → `BelljarConfig`. Raises `PolicyError` for the configuration of another provider."""
    return described(config)[0]


def described(config: BaseModel | str | None) -> tuple[BelljarConfig, tuple[str, ...]]:
    """The same, with notes for the operator: a compose file is read, and judged."""
    if config is None:
        return BelljarConfig(), ()
    if isinstance(config, BelljarConfig):
        return config, ()
    if not isinstance(config, str):
        return _of_model(config)
    check_below(Path(config).absolute(), Path.cwd())  # Inspect works in the task's directory then
    if is_compose_name(config):
        path = Path(config)
        return of_compose(read_document(path), beside_policy(path.parent), where=str(path))
    if is_dockerfile_name(config):
        raise PolicyError(DOCKERFILE.reason, where=config, mend=DOCKERFILE.mend)
    return BelljarConfig(policy=_preset_again(config)), ()


def _of_model(config: BaseModel) -> tuple[BelljarConfig, tuple[str, ...]]:
    from inspect_ai.util import ComposeConfig

    if isinstance(config, ComposeConfig):
        return of_compose(as_document(config), BelljarConfig(), where="the task's sandbox")
    raise PolicyError(
        f"a sandbox configuration of type {type(config).__name__} is not Belljar's",
        where="the task's sandbox",
        mend='name a policy instead: sandbox=("belljar", "policy.yaml")',
    )


def of_compose(
    document: Mapping[str, Any], base: BelljarConfig, *, where: str
) -> tuple[BelljarConfig, tuple[str, ...]]:
    """What a compose file makes of `base`, and notes. Raises `PolicyError` for one that a cell can't keep."""
    judgement = judge_compose(document)
    if isinstance(judgement, Refused):
        raise PolicyError(judgement.reason, where=printable(where), mend=judgement.mend)
    return base.model_copy(update=dict(judgement.changes)), told(judgement.differences)


def check_below(path: Path, directory: Path) -> None:
    """A file that a task names below its own directory is there: no directory on the way is a link out. Raises `PolicyError`."""
    home = os.path.realpath(directory)
    written = os.path.normpath(path)
    is_named_below = Path(written).is_relative_to(directory.absolute()) or Path(written).is_relative_to(home)
    if is_named_below and not Path(os.path.realpath(path.parent)).is_relative_to(home):
        raise PolicyError(
            "a link on the way to it leads out of the task's directory",
            where=printable(str(path)),
            mend="put the file itself there, or name it where it is",
        )


def beside_policy(directory: Path) -> BelljarConfig:
    """The policy beside a task, if there is one: also a link, which is judged when it is read."""
    found = next((directory / name for name in POLICY_NAMES if os.path.lexists(directory / name)), None)
    return BelljarConfig(policy=str(found.absolute()) if found else "")


def settled(
    config: BelljarConfig, metadata: Mapping[str, object] | None, *, where: str = "the task's compose file"
) -> tuple[BelljarConfig, tuple[str, ...]]:
    """The same without a compose file in it, for a sample with this metadata, and notes. None: no sample is known yet; what Inspect defines while it
    starts a task is used.

    Raises `PolicyError` for what a cell can't keep.
    """
    if not config.compose:
        return config, ()
    known = _defined() if metadata is None else metadata_variables(metadata)
    judgement = judge_for_sample(json.loads(config.compose), known, blanks=metadata is None)
    if isinstance(judgement, Refused):
        raise PolicyError(judgement.reason, where=printable(where), mend=judgement.mend)
    return config.model_copy(update={"compose": "", **judgement.changes}), told(judgement.differences)


def notes_on(config: BaseModel | str | None, *, forced: str = "") -> tuple[str, ...]:
    """What the operator should know of a configuration as Inspect handed it over; what was said when `belljar run` made it is not among it. Raises `PolicyError`."""
    from belljar.policy import resolve_policy

    written, notes = described(config)
    ours, more = settled(written, None)
    said = () if isinstance(config, BelljarConfig) else (*notes, *more)
    used = _narrowing(ours) if forced else ours
    operator = read_operator()
    base = resolve_policy(choose_policy(used, forced=forced, operator=operator))
    said = (*said, *_bounded(_changed(base, used), operator, forced=forced))
    if not used.network or base.policy.network is None:
        return said
    return (*said, _TAKEN_AWAY if used.network == NO_NETWORK else _REPLACED)


def _bounded(loaded: LoadedPolicy, operator: Operator, *, forced: str) -> Iterator[str]:
    """What the operator's floors make of a policy."""
    from belljar.policy import resolve_policy
    from belljar.policy.floor import looser_fields

    risk = loaded.policy.risk
    if operator.policy and not forced:
        floor = resolve_policy(operator.policy).policy
        wider = looser_fields(loaded.policy, floor)
        risk = max(risk, floor.risk)
        told = f"the task asks for more than ${POLICY_VARIABLE} allows, and gets what that says: {', '.join(wider)}"
        yield from (printable(told, max_chars=1000),) if wider else ()
    settings = operator.settings
    if risk < settings.least_risk:
        yield f"risk `{risk}` is raised to `{settings.least_risk}`, as {printable(settings.least_risk_from)} says"


def _defined() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(METADATA_PREFIX)}


def shaping(config: BelljarConfig, metadata: Mapping[str, object]) -> dict[str, str]:
    """The variables of a sample by which its cells differ in more than their environment."""
    return shaping_variables(json.loads(config.compose), metadata_variables(metadata)) if config.compose else {}


def _preset_again(config: str) -> str:
    """Inspect's command line makes an absolute path of whatever follows `belljar:`; a preset's name is meant as a name."""
    from belljar.policy.load import PRESETS

    path = Path(config)
    return path.name if path.is_absolute() and path.name in PRESETS and not os.path.lexists(path) else config


def choose_policy(config: BelljarConfig, *, forced: str, operator: Operator) -> str:
    """The file or preset to load; `forced` is that of `--policy`. What `os.environ` alone says came later, from a `.env` file: it is the task's word."""
    return forced or config.policy or operator.policy or os.environ.get(POLICY_VARIABLE, "") or DEFAULT_POLICY


def load(
    config: BaseModel | str | None,
    *,
    forced: str = "",
    forced_tier: str = "",
    metadata: Mapping[str, object] | None = None,
    allow_upstreams: bool = False,
) -> LoadedPolicy:
    """Load the policy for a sandbox configuration, with its changes made and in the operator's tier, if one was given.

    Of the operator's policy (`forced`) a configuration changes nothing; but one without a network takes it away. `metadata`: as `settled`.
    `allow_upstreams`: the operator lets a task's own policy reach something real.

    Raises `PolicyError`, also for a tier that is lower than the policy, or the task's own configuration, demands.
    """
    ours, _ = settled(as_config(config), metadata)
    operator = read_operator(allow_upstreams=allow_upstreams)
    return _loaded(_narrowing(ours) if forced else ours, operator, forced=forced, forced_tier=forced_tier)


def _narrowing(config: BelljarConfig) -> BelljarConfig:
    return BelljarConfig(network=NO_NETWORK if config.network == NO_NETWORK else "")


def _loaded(ours: BelljarConfig, operator: Operator, *, forced: str, forced_tier: str) -> LoadedPolicy:
    from belljar.policy import resolve_policy, with_tier
    from belljar.policy.floor import tightened

    own = with_tier(_changed(resolve_policy(choose_policy(ours, forced=forced, operator=operator)), ours), ours.tier)
    if operator.policy and not forced:
        own = tightened(own, resolve_policy(operator.policy))
    return permitted(with_tier(own, forced_tier), operator, is_named=bool(forced or operator.policy))


def _changed(loaded: LoadedPolicy, ours: BelljarConfig) -> LoadedPolicy:
    from belljar.policy.load import with_changes
    from belljar.policy.resources import written_resources

    changes = ours.changes()
    if isinstance(changes.get("network"), dict) and loaded.policy.network is not None:
        changes["network"]["record"] = loaded.policy.network.record
    if ours.resources:
        changes["resources"] = {**written_resources(loaded.policy.resources), **dict(ours.resources)}
    if ours.env:
        changes["env"] = {**loaded.policy.env, **dict(ours.env)}
    return with_changes(loaded, changes) if changes else loaded


def sample_policy(
    config: BaseModel | str | None,
    metadata: Mapping[str, object],
    *,
    forced: str = "",
    forced_tier: str = "",
    allow_upstreams: bool = False,
) -> SamplePolicy:
    """As `load`, for one sample, with its metadata in the values of `env` too. Raises `PolicyError`."""
    written = as_config(config)
    ours, _ = settled(written, metadata)
    used = _narrowing(ours) if forced else ours
    operator = read_operator(allow_upstreams=allow_upstreams)
    loaded = _loaded(used, operator, forced=forced, forced_tier=forced_tier)
    policy = for_sample(loaded, metadata)
    is_shared = policy is loaded and not written.compose
    return SamplePolicy(policy=policy, is_shared=is_shared, service=used.service, program=used.program)


def metadata_variables(metadata: Mapping[str, object]) -> dict[str, str]:
    """A sample's metadata as the variables Inspect defines for it: `SAMPLE_METADATA_<KEY>`, upper case, spaces as
    underscores.
    """
    return {f"{METADATA_PREFIX}{key.replace(' ', '_').upper()}": str(value) for key, value in metadata.items()}


def for_sample(loaded: LoadedPolicy, metadata: Mapping[str, object]) -> LoadedPolicy:
    """The policy with `${SAMPLE_METADATA_…}` in the values of `env`, and of its target cells' `env`, expanded for one sample. Raises `PolicyError` for
    an unknown reference without default.
    """
    variables = metadata_variables(metadata)
    from belljar.policy.load import with_changes

    changes: dict[str, Any] = {}
    env = _expanded(loaded.policy.env, variables, where="env")
    if env != dict(loaded.policy.env):
        changes["env"] = env
    network = loaded.policy.network
    if network is not None:
        stand_ins = {name: _for_sample(name, item, variables) for name, item in network.stand_ins.items()}
        if stand_ins != dict(network.stand_ins):
            changes["network"] = network.model_copy(update={"stand_ins": stand_ins})
    return with_changes(loaded, changes) if changes else loaded


def _for_sample(name: str, stand_in: StandIn, variables: Mapping[str, str]) -> StandIn:
    """A target cell's environment is a sample's too."""
    env: Mapping[str, str] = getattr(stand_in, "env", {})
    expanded = _expanded(env, variables, where=f"network.stand_ins.{name}.env")
    return stand_in if expanded == dict(env) else stand_in.model_copy(update={"env": expanded})


def _expanded(env: Mapping[str, str], variables: Mapping[str, str], *, where: str) -> dict[str, str]:
    """Raises `PolicyError` for more than `MAX_CHARACTERS` in all."""
    expanded: dict[str, str] = {}
    room = MAX_CHARACTERS
    for name, value in env.items():
        expanded[name] = expand(value, variables, where=f"{where}.{name}")
        room -= len(expanded[name])
        if room < 0:
            raise _too_long(where)
    return expanded


def _too_long(where: str) -> PolicyError:
    return PolicyError(
        f"a sample's metadata makes more than {MAX_CHARACTERS:,} characters of it",
        where=where,
        mend="give large data as a file of the sample",
    )


def expand(value: str, variables: Mapping[str, str], *, where: str) -> str:
    """Replace `$NAME`, `${NAME}` and `${NAME:-default}` where NAME begins with `SAMPLE_METADATA_`; `$$` before such a
    name keeps it literally.

    Any other dollar sign is left as it is: a policy's values are not a shell's. Raises `PolicyError` for metadata that is missing, and beyond
    `MAX_CHARACTERS` of it.
    """
    room = MAX_CHARACTERS

    def put(match: re.Match[str]) -> str:
        nonlocal room
        if match[0] == "$$":
            return "$"
        name, operator, default = match[1] or match[4], match[2], match[3]
        found = variables.get(name)
        if found or (found is not None and operator != ":-"):
            room -= len(found)
            if room < 0:
                raise _too_long(where)
            return found
        if operator:
            return default
        raise PolicyError(
            f"{name} is not in this sample's metadata",
            where=where,
            mend=f"add it to the sample's metadata, or give a default: ${{{name}:-…}}",
        )

    return _REFERENCE.sub(put, value)
