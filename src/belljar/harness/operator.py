"""The operator's own part, whatever a task brings: options, environment at the start, settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

from belljar.dataclass import dataclass
from belljar.errors import PolicyError
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.host.settings import Settings
    from belljar.policy.loaded import LoadedPolicy

POLICY_VARIABLE: Final = "BELLJAR_POLICY"
ALLOW_VARIABLE: Final = "BELLJAR_ALLOW_UPSTREAMS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The operator's settings, outside of any task.

    `policy`: `$BELLJAR_POLICY` at process start. `allows_upstreams`: `--allow-upstreams` or its
    variable. `run_policy`, `override`, `tier`: `--policy`, `--override`, `--tier`.
    """

    settings: Settings
    policy: str = ""
    allows_upstreams: bool = False
    run_policy: str = ""
    override: bool = False
    tier: str = ""


class OperatorOptions(TypedDict, total=False):
    """Options of the command line: arguments of `read_operator`."""

    run_policy: str
    override: bool
    tier: str
    allow_upstreams: bool


def read_operator(
    *, run_policy: str = "", override: bool = False, tier: str = "", allow_upstreams: bool = False
) -> Operator:
    """From the settings files and the start environment, which no `.env` file changes.

    Raises `PolicyError` or `HostError` for invalid settings.
    """
    from belljar.host.settings import environment_at_start, read_settings
    from belljar.policy.loaded import PRESETS

    environ = environment_at_start()
    policy = environ.get(POLICY_VARIABLE, "")
    # Inspect changes into a task's directory, where a relative file would be the task's.
    if policy and policy not in PRESETS and not policy.startswith(("/", "~")):
        what = f"{printable(policy)} is neither a preset nor an absolute path"
        raise PolicyError(what, where=f"${POLICY_VARIABLE}", hint="give the whole path of the file")
    return Operator(
        settings=read_settings(),
        policy=policy,
        allows_upstreams=allow_upstreams or environ.get(ALLOW_VARIABLE) == "1",
        run_policy=run_policy,
        override=override,
        tier=tier,
    )


def permitted(loaded: LoadedPolicy, operator: Operator, *, is_named: bool) -> LoadedPolicy:
    """The policy within this host's settings; `is_named`: by the operator.

    Raises `PolicyError` for upstreams that are not allowed.
    """
    from belljar.host.settings import Upstreams, within_settings
    from belljar.plan.explain_network import announcements

    made = within_settings(loaded, operator.settings)
    upstreams = made.policy.network.upstreams if made.policy.network is not None else ()
    is_allowed = operator.allows_upstreams or operator.settings.upstreams is Upstreams.ALLOW
    if upstreams and not is_named and not is_allowed:
        raise PolicyError(
            f"the task's own policy reaches real hosts: {', '.join(announcements(made))}",
            where=printable(loaded.source),
            hint=f"allow it with `belljar run --allow-upstreams`, or with {ALLOW_VARIABLE}=1 for "
            "`inspect eval`; or use your own policy",
        )
    return made
