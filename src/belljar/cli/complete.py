"""What a shell offers for an argument: presets and policy files, runs, cells. Everything else is
imported when a shell asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

MAX_OFFERED: Final = 50


def policies(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - as above
    incomplete: str,
) -> list[CompletionItem]:
    """Presets, and files, by the shell's own completion."""
    from click.shell_completion import CompletionItem

    from belljar.policy.loaded import PRESETS

    names = [CompletionItem(name) for name in PRESETS if name.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


def runs(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - as above
    incomplete: str,
) -> list[CompletionItem]:
    """`last`, and the newest runs."""
    from click.shell_completion import CompletionItem

    from belljar.ledger.rundir import RUNS
    from belljar.store.home import belljar_home

    try:
        names = sorted((path.name for path in (belljar_home() / RUNS).iterdir()), reverse=True)
    except OSError:
        names = []
    found = [name for name in ("last", *names) if name.startswith(incomplete)]
    return [CompletionItem(name) for name in found[:MAX_OFFERED]]


def cells(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - as above
    incomplete: str,
) -> list[CompletionItem]:
    """The cells that live, each with what it is for."""
    from click.shell_completion import CompletionItem

    from belljar.isolation import list_cells

    try:
        found = [cell for cell in list_cells() if cell.cell_id.startswith(incomplete)]
    except OSError:
        found = []
    return [
        CompletionItem(cell.cell_id, help=" ".join((cell.about.tier, cell.about.sample)).strip())
        for cell in found[:MAX_OFFERED]
        if cell.state == "alive" and cell.cell_id.isprintable()
    ]
