"""`belljar policy`: check a policy file, print the schema for an editor, print a preset to begin
from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy import Policy
    from belljar.policy.load import Examined

POLICY_WRONG_CODE = 4


@click.group()
def policy() -> None:
    """Check a policy; print the schema or a preset.

    \b
    Examples:
      belljar policy show high > policy.yaml
      belljar policy check policy.yaml
    """


@policy.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: ok, problems with line and column, and the policy with all "
    "defaults.",
)
def check(file: Path, as_json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """Say whether FILE is a valid policy, and all that is wrong with it and with the files that its
    stand-ins are made from.

    Knows nothing of this host: `belljar plan FILE` says whether it can be carried out here. Exit
    code 0 when it is valid, 4 when not.
    """
    from belljar.errors import PolicyError
    from belljar.policy import PRESETS
    from belljar.policy.load import refusal

    if str(file) in PRESETS and not file.exists():
        raise PolicyError(
            f"`{file}` is a preset, and presets need no check",
            hint=f"see it with `belljar policy show {file}`",
        )
    if as_json:
        return _check_json(file)
    found = _examined(file)
    if found.policy is None or found.problems:
        raise refusal(found.problems, str(file), hint="")
    click.echo(f"{printable(str(file))}: ok — {_summary(found.policy)}")
    return 0


def _examined(file: Path) -> Examined:
    from belljar.network.stand_ins.author import examine_all
    from belljar.policy.load import read_policy_file

    text = read_policy_file(file)
    return examine_all(text, source=str(file), base=file.parent.absolute(), default_name=file.stem)


def _summary(policy: Policy) -> str:
    from belljar.policy import demanded_tier

    tier = demanded_tier(policy.risk, policy.tier)
    return (
        f"`{policy.name}`, risk {policy.risk}, at least tier {tier}, image {policy.image}, "
        f"network {_network(policy)}"
    )


def _network(policy: Policy) -> str:
    network = policy.network
    if network is None:
        return "none"
    real = ", ".join(upstream.host for upstream in network.upstreams)
    said = (
        f"{len(network.stand_ins)} stand-in{'' if len(network.stand_ins) == 1 else 's'}",
        "unknown names simulated"
        if network.default.value == "simulate"
        else "unknown names don't exist",
        *(("a sink",) if network.sink else ()),
        *((click.style(f"REAL: {real}", fg="red", bold=True),) if real else ()),
    )
    return f"({', '.join(said)})"


def _check_json(file: Path) -> int:
    from belljar.errors import PolicyError

    found: dict[str, Any]
    try:
        policy, problems, _ = _examined(file)
    except PolicyError as exc:
        found = {
            "ok": False,
            "problems": [{"line": None, "column": None, "field": "", "message": exc.what}],
            "policy": None,
        }
    else:
        shown = [
            {"line": p.mark.line, "column": p.mark.column, "field": p.field, "message": p.message}
            for p in problems
        ]
        ok = policy is not None and not problems
        found = {
            "ok": ok,
            "problems": shown,
            "policy": policy.to_json() if policy is not None and ok else None,
        }
    click.echo(json.dumps({"file": str(file), **found}, indent=2))
    return 0 if found["ok"] else POLICY_WRONG_CODE


@policy.command()
def schema() -> None:
    """Print the JSON Schema of a policy file.

    Save it, and point your editor at it with this first line of a policy:
    `# yaml-language-server: $schema=policy.schema.json`
    """
    from belljar.policy import policy_schema

    click.echo(json.dumps(policy_schema(), indent=2))


@policy.command()
@click.argument("preset")
def show(preset: str) -> None:
    """Print a preset (low, medium, high or critical) as a policy file."""
    from belljar.policy import load_preset

    click.echo(load_preset(preset).text.decode(), nl=False)
