"""`belljar plan`: a policy's blast radius on this host."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from belljar.cli.complete import policies
from belljar.cli.exec import TIERS, typed_policy

if TYPE_CHECKING:
    from belljar.plan import ImageFacts


MAX_WIDTH: Final = 110


@click.command()
@click.argument("policy", required=False, metavar="[POLICY|PRESET]", shell_complete=policies)
@click.option(
    "--tier",
    type=click.Choice(TIERS),
    help="Exactly this tier, at or above what the policy demands.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole plan as one JSON object.")
@click.option(
    "--no-prove",
    is_flag=True,
    help="Don't boot a guest or run a container, even if that was never tried here.",
)
def plan(
    policy: str | None,
    tier: str | None,
    as_json: bool,  # noqa: FBT001 - click passes options by name
    no_prove: bool,  # noqa: FBT001 - click passes options by name
) -> int:
    """Print what a cell of POLICY can read, write, reach and consume here, and which layers are
    between it and this host.

    POLICY is a policy file or a preset (low, medium, high, critical); default: high. No cell is
    started. Exit code 0 when one could be made (once its image is built), 3 when this host can't do
    what the policy demands or is held, 4 when the policy is wrong.
    """
    from belljar.cli._facts import host_facts
    from belljar.cli.cells import columns_of, warn_if_held
    from belljar.errors import HostError
    from belljar.plan import make_plan, render_plan
    from belljar.store.home import belljar_home

    loaded, home = typed_policy(policy, tier, announces=False), belljar_home()
    if loaded.policy.network is not None:
        from belljar.network.stand_ins.author import check_stand_ins

        check_stand_ins(loaded)
    facts, image = host_facts(home, prove=not no_prove), image_facts(home, loaded.policy.image)
    made = make_plan(loaded.policy, facts, image, base=loaded.base)
    width = min(MAX_WIDTH, columns_of(sys.stdout) or MAX_WIDTH)
    lines = render_plan(made, width=width, real=lambda line: click.style(line, fg="red", bold=True))
    click.echo(json.dumps(made.to_json(), indent=2) if as_json else "\n".join(lines))
    return HostError.exit_code if warn_if_held() else 0


def image_facts(home: Path, ref: str) -> ImageFacts | None:
    """What the plan needs to know of the image; None when it isn't in the store."""
    from belljar.errors import HostError
    from belljar.image.store import Store
    from belljar.plan import ImageFacts

    try:
        image = Store(home).find(ref)
    except HostError:
        return None
    return ImageFacts(
        digest=image.digest,
        name=ref,
        user=image.user,
        workdir=image.workdir,
        env=dict(image.env),
        program=shlex.join(image.config.program),
        has_check=image.healthcheck is not None,
    )
