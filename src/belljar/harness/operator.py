"""Chooses the policy of a sample's cell by the operator's word, and judges a task's `.env` file.

The first of: the task's or sample's own, `$BELLJAR_POLICY`, preset `high`; then its compose file.
`belljar run --policy` states the isolation around that. `$BELLJAR_POLICY` is a floor: nothing of a
task's is looser.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from belljar.compose.document import GENERIC_DETAIL, GENERIC_IMAGE, INSPECTS_IMAGE
from belljar.compose.interpolate import expand_metadata
from belljar.compose.values import CannotKeepError
from belljar.dataclass import dataclass, field, replace
from belljar.differences import Difference, DifferenceKind
from belljar.errors import PolicyError
from belljar.harness.config import (
    BelljarConfig,
    as_config,
    check_own_files,
    metadata_variables,
    settled,
)
from belljar.host import settings as host_settings
from belljar.host.settings import Settings, Upstreams
from belljar.policy.files import read_regular
from belljar.policy.load import resolve_policy
from belljar.policy.loaded import PRESETS, LoadedPolicy, with_tier
from belljar.policy.merge import TASK, above_floor, under_policy, with_changes
from belljar.units import printable

if TYPE_CHECKING:
    from pydantic import BaseModel

# Who says nothing gets a strict wall: looser ones are asked for.
DEFAULT_POLICY: Final = "high"
DEFAULT_IMAGE: Final = "default"
POLICY_VARIABLE: Final = "BELLJAR_POLICY"


def _policy_at_start() -> str:
    policy = host_settings.environment_at_start().get(POLICY_VARIABLE, "")
    # Inspect changes into a task's directory, where a relative file would be the task's.
    if policy and policy not in PRESETS and not policy.startswith(("/", "~")):
        what = f"{printable(policy)} is neither a preset nor an absolute path"
        raise PolicyError(what, where=f"${POLICY_VARIABLE}", hint="give the whole path of the file")
    return policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The operator's word, outside of any task. `run_policy`, `tier`: `--policy`, `--tier`.

    The rest is read when it is made, which raises `PolicyError` or `HostError`: `policy`, of
    `$BELLJAR_POLICY` when the process started, and the host's settings.
    """

    run_policy: str = ""
    tier: str = ""
    allow_upstreams: bool = False
    policy: str = field(default_factory=_policy_at_start)
    settings: Settings = field(default_factory=lambda: host_settings.read_settings())


def permitted(loaded: LoadedPolicy, operator: Operator, *, is_named: bool) -> LoadedPolicy:
    """The policy within the settings; `is_named`: by the operator. Raises `PolicyError`."""
    from belljar.plan.explain import announcements

    made = host_settings.within_settings(loaded, operator.settings)
    upstreams = made.policy.network.upstreams if made.policy.network is not None else ()
    is_allowed = operator.allow_upstreams or operator.settings.upstreams is Upstreams.ALLOW
    if upstreams and not is_named and not is_allowed:
        raise PolicyError(
            f"the task's own policy reaches real hosts: {', '.join(announcements(made))}",
            where=printable(loaded.source),
            hint="allow it with `belljar run --allow-upstreams`, or in the settings with "
            "`upstreams: allow`; or use your own policy",
        )
    return made


# ---- a sample's policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePolicy:
    """One sample's policy, and its `asked` configuration's program and images. `differences`:
    from the task and the operator's policy.
    """

    policy: LoadedPolicy
    asked: BelljarConfig
    differences: tuple[Difference, ...]


def within(ours: BelljarConfig, operator: Operator) -> SamplePolicy:
    """A settled configuration under the operator's word. Raises `PolicyError`."""
    check_own_files(ours)
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
    changed: list[tuple[str, str, str]] = []
    if ours.is_generic:  # it asks for plain Docker
        detail = f"the policy's image `{made.policy.image}` instead of `{INSPECTS_IMAGE}`"
        # All presets name it, so that a policy counts as naming an image where it names another.
        if made.policy.image == DEFAULT_IMAGE:
            made, detail = with_changes(made, {"image": GENERIC_IMAGE}), GENERIC_DETAIL
        changed.append((TASK, "image", printable(detail, max_chars=400)))
    is_named = bool(operator.run_policy or operator.policy)
    done = permitted(with_tier(made, operator.tier), operator, is_named=is_named)
    settings, risk = operator.settings, made.policy.risk
    if risk < settings.least_risk:
        where = printable(settings.least_risk_from)
        detail = f"`{risk}` is raised to `{settings.least_risk}`, as {where} says"
        changed.append(("policy", "risk", detail))
    kind = DifferenceKind.CHANGED
    more = (Difference(kind=kind, where=at, key=key, detail=why) for at, key, why in changed)
    return SamplePolicy(
        policy=replace(done, data=ours.data),
        asked=ours,
        differences=(*ours.differences, *found, *more),
    )


def sample_policy(
    config: BaseModel | str | None, metadata: Mapping[str, object], operator: Operator
) -> SamplePolicy:
    """One sample's policy, with metadata. Raises `PolicyError`."""
    made = within(settled(as_config(config), metadata), operator)
    return replace(made, policy=for_sample(made.policy, metadata))


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
    """As `expand_metadata`. Raises `PolicyError`."""
    try:
        return expand_metadata(env, variables)
    except CannotKeepError as error:
        raise PolicyError(str(error), where=where, hint=error.hint) from error


# ---- `.env` files

# Nobody writes more variables; a longer file is something else by that name.
MAX_BYTES: Final = 1 << 20

# Anything else may load code, open a port, move a store or choose who is trusted.
SETTINGS: Final = frozenset({"INSPECT_LOG_LEVEL", "INSPECT_EVAL_MODEL"})
# No address: the operator's own keys would be sent there.
_KEY: Final = re.compile(r"(?!INSPECT_|BELLJAR_)[A-Z][A-Z0-9_]*_API_KEY")
# What chooses this host's programs, their code, the store and its keys, trust roots and proxies.
_OF_THE_HOST: Final = re.compile(
    r"(BELLJAR|DOCKER|LD|OPENSSL|SSL|XDG)_.*|PYTHON.*|HOME|PATH|TMPDIR|(?i:.*_proxy)"
)


def read_dotenv(environ: Mapping[str, str]) -> str:
    """Find and judge the file that Inspect will read; say what it will set. Changes nothing.

    Raises `PolicyError` for a name that is not allowed, or a value made of other variables.
    """
    from io import BytesIO, TextIOWrapper

    from dotenv import dotenv_values, find_dotenv

    path = find_dotenv(usecwd=True)
    if not path:
        return ""
    where = printable(path)
    try:
        # Never a FIFO, which would hold the start. A link may lead anywhere, as for Inspect.
        real = Path(os.path.realpath(path))
        data = read_regular(real.parent, real.name, MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError("it has more than 1 MiB")
        stream = TextIOWrapper(BytesIO(data), encoding="utf-8")  # as Inspect opens it
        # Values as they are written: what would be expanded in them is refused.
        values = dotenv_values(stream=stream, interpolate=False)
    except (OSError, ValueError) as error:
        what = f"it can't be read: {printable(str(error))}"
        raise PolicyError(what, where=where, hint="repair it, or remove it from there") from error
    # A name without a value sets nothing.
    names = sorted(name for name, value in values.items() if value is not None)
    known = [name for name in names if name in SETTINGS or _KEY.fullmatch(name)]
    # A provider would be sent any secret of the environment as its key.
    allowed = {name for name in known if "${" not in str(values[name])}
    if refused := [name for name in names if name not in allowed]:
        raise PolicyError(
            f"a `.env` file can't set {printable(', '.join(refused), max_chars=600)}: only"
            f" {' and '.join(sorted(SETTINGS))}, and keys of model providers, to a plain value",
            where=where,
            hint="remove it there; if you want it, set it in the environment of belljar",
        )
    new = [name for name in names if not environ.get(name)]
    return f"{where} sets {', '.join(new)}" if new else ""


def restore_start() -> None:
    """Undo what a `.env` file made of this host's variables."""
    # That reads it unjudged. A program of someone's own that calls Inspect may set them.
    if not sys.argv[0].endswith(("/inspect", "/inspect_ai/__main__.py")):
        return
    start = host_settings.environment_at_start()
    for name in filter(_OF_THE_HOST.fullmatch, {*os.environ, *start}):
        if name in start:
            os.environ[name] = start[name]
        else:
            os.environ.pop(name, None)
