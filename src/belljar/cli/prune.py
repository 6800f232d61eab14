"""`belljar prune`: room in the store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click

from belljar.errors import HostError
from belljar.units import format_size, parse_duration, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from belljar.isolation.prune import Part

_NAME_CHARS: Final = 12


def _duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """A duration as people write it."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx=ctx, param=param) from error


@click.command("prune")
@click.option(
    "--unused-for",
    callback=_duration,
    metavar="DURATION",
    default="14d",
    show_default=True,
    help="Templates and unpacked images that no cell used for so long.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Whatever no living cell uses, and images without a name.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def prune(unused_for: float, everything: bool, dry_run: bool, as_json: bool) -> int:  # noqa: FBT001
    """Remove what cells were made from and nobody uses any more, and say what was freed.

    Templates and unpacked images whose image is gone or that were not used for a while, roots of
    programs that were replaced, guest kernels that are not the current one, and halves of any of
    them. Images with a name, runs and keys stay. What a living cell uses is never removed; what
    goes is made again when a cell wants it.

    Exit code 3 when something could not be removed.
    """
    from belljar.cli._async import run_async
    from belljar.isolation.prune import prune as prune_store
    from belljar.store.home import belljar_home

    parts = run_async(
        prune_store, belljar_home(), unused_for_s=unused_for, everything=everything, dry_run=dry_run
    )
    if as_json:
        click.echo(json.dumps(as_data(parts, dry_run=dry_run), indent=2))
    else:
        for line in lines(parts, dry_run=dry_run):
            click.echo(printable(line))
    return exit_code(parts)


def exit_code(parts: Sequence[Part]) -> int:
    """The host's, when something stayed that nobody uses."""
    return HostError.exit_code if any(part.state == "failed" for part in parts) else 0


def freed_bytes(parts: Sequence[Part]) -> int:
    """Of what was removed, or would be."""
    return sum(part.size_bytes for part in parts if part.state in {"removed", "unneeded"})


def as_data(parts: Sequence[Part], *, dry_run: bool) -> dict[str, object]:
    """As JSON values."""
    shown = [
        {
            "kind": part.kind,
            "path": str(part.path),
            "why": part.why,
            "size_bytes": part.size_bytes,
            "state": part.state,
            "note": part.note,
        }
        for part in parts
    ]
    return {"dry_run": dry_run, "freed_bytes": freed_bytes(parts), "parts": shown}


def lines(parts: Sequence[Part], *, dry_run: bool) -> list[str]:
    """One for each part, and the sum."""
    shown = [_line(part) for part in parts]
    count = sum(part.state in {"removed", "unneeded"} for part in parts)
    if not count:
        return shown or ["nothing to remove"]
    return [
        *shown,
        f"{'would free' if dry_run else 'freed'} {format_size(freed_bytes(parts))} ({count} parts)",
    ]


def _line(part: Part) -> str:
    said = {
        "unneeded": "would remove",
        "removed": "removed",
        "in use": "kept",
        "failed": "NOT removed",
    }[part.state]
    name = part.path.name if part.kind == "half-made" else part.path.name[:_NAME_CHARS]
    after = f": {part.note}" if part.note else ""
    return f"{said} {part.kind} {name} ({format_size(part.size_bytes)}): {part.why}{after}"
