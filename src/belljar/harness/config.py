"""Which policy a sample's cell gets: from what Inspect hands us to a `LoadedPolicy`. Reads policy files, decides
purely.

Order, first hit wins: the policy the operator gave to `belljar run --policy`; the task's or sample's own (`("belljar",
"policy.yaml")`); `$BELLJAR_POLICY`; the preset `high`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict

from belljar.errors import PolicyError
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy import LoadedPolicy
    from belljar.policy.stand_ins import StandIn

DEFAULT_POLICY: Final = "high"
POLICY_VARIABLE: Final = "BELLJAR_POLICY"
METADATA_PREFIX: Final = "SAMPLE_METADATA_"
_NAME: Final = METADATA_PREFIX + r"[A-Za-z0-9_]+"
_REFERENCE: Final = re.compile(rf"\$\$(?=\{{?{_NAME})|\$\{{({_NAME})(?:(:?-)([^{{}}]*))?\}}|\$({_NAME})")


class BelljarConfig(BaseModel):
    """A sandbox configuration as Inspect keeps it in its log: a policy and what is changed in it.

    `policy` is a file or a preset, "" for the default. The other fields, when given, replace the policy's field of the
    same name; `tier` can only raise it. `network` is JSON, in a policy's words: what a compose file with several services
    means; `resources` are those that it sets.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str = ""
    network: str = ""
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
        return changes | ({"network": json.loads(self.network)} if self.network else {})


def as_config(config: BaseModel | str | None) -> BelljarConfig:
    """What Inspect hands a provider → `BelljarConfig`. Raises `PolicyError` for the configuration of another provider."""
    if config is None:
        return BelljarConfig()
    if isinstance(config, str):
        return BelljarConfig(policy=_preset_again(config))
    if isinstance(config, BelljarConfig):
        return config
    raise PolicyError(
        f"a sandbox configuration of type {type(config).__name__} is not Belljar's",
        where="the task's sandbox",
        mend='name a policy instead: sandbox=("belljar", "policy.yaml")',
    )


def _preset_again(config: str) -> str:
    """Inspect's command line makes an absolute path of whatever follows `belljar:`; a preset's name is meant as a name."""
    from belljar.policy.load import PRESETS

    path = Path(config)
    return path.name if path.is_absolute() and path.name in PRESETS and not path.exists() else config


def choose_policy(config: BelljarConfig, *, forced: str = "") -> str:
    """The file or preset to load; `forced` is the operator's."""
    return forced or config.policy or os.environ.get(POLICY_VARIABLE, "") or DEFAULT_POLICY


def load(config: BaseModel | str | None, *, forced: str = "", forced_tier: str = "") -> LoadedPolicy:
    """Load the policy for a sandbox configuration, with its changes made and in the operator's tier, if he gave one.

    Raises `PolicyError`, also for a tier that is lower than the policy, or the task's own configuration, demands.
    """
    from belljar.policy import resolve_policy, with_tier
    from belljar.policy.resources import written_resources

    ours = as_config(config)
    loaded = resolve_policy(choose_policy(ours, forced=forced))
    changes = ours.changes()
    if ours.resources:
        changes["resources"] = {**written_resources(loaded.policy.resources), **dict(ours.resources)}
    if ours.env:
        changes["env"] = {**loaded.policy.env, **dict(ours.env)}
    changed = with_changes(loaded, changes) if changes else loaded
    return with_tier(with_tier(changed, ours.tier), forced_tier)


def with_changes(loaded: LoadedPolicy, changes: Mapping[str, Any]) -> LoadedPolicy:
    """The same policy with some fields replaced, checked again as if it had been written so. Raises `PolicyError`."""
    model = type(loaded.policy)
    fields = {name: getattr(loaded.policy, name) for name in model.model_fields}
    try:
        changed = model.model_validate({**fields, **changes}, strict=False)
    except ValueError as error:
        raise PolicyError(
            f"the policy can't take what the task asks for: {printable(str(error), max_chars=600)}",
            where=str(loaded.source),
            mend="change the task's sandbox, or give --policy",
        ) from error
    return replace(loaded, policy=changed)


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
    return {name: expand(value, variables, where=f"{where}.{name}") for name, value in env.items()}


def expand(value: str, variables: Mapping[str, str], *, where: str) -> str:
    """Replace `$NAME`, `${NAME}` and `${NAME:-default}` where NAME begins with `SAMPLE_METADATA_`; `$$` before such a
    name keeps it literally.

    Any other dollar sign is left as it is: a policy's values are not a shell's.
    """

    def put(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name, operator, default = match[1] or match[4], match[2], match[3]
        found = variables.get(name)
        if found or (found is not None and operator != ":-"):
            return found
        if operator:
            return default
        raise PolicyError(
            f"{name} is not in this sample's metadata",
            where=where,
            mend=f"add it to the sample's metadata, or give a default: ${{{name}:-…}}",
        )

    return _REFERENCE.sub(put, value)
