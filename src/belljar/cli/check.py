"""`belljar check`: what a task's samples would run in, before anything is started."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from belljar.cli.exec import TIERS
from belljar.cli.failures import Misuse
from belljar.differences import Kind, samples_named, sentences
from belljar.units import format_duration, format_size, printable

if TYPE_CHECKING:
    from belljar.harness.operator import OperatorOptions
    from belljar.harness.preview import Outlook, Preview
    from belljar.plan import Plan

_OUTCOMES = {
    "runs": "runs as written",
    "differs": "runs, with differences",
    "missing": "can't run here yet",
    "refused": "refused",
}


@click.command("check", options_metavar="[OPTIONS]")
@click.argument("target", metavar="TASK|COMPOSE|POLICY")
@click.option("--policy", default="", metavar="FILE|PRESET", help="As for `belljar run`.")
@click.option("--override", is_flag=True, help="As for `belljar run`.")
@click.option("--allow-upstreams", is_flag=True, help="As for `belljar run`.")
@click.option("--tier", type=click.Choice(TIERS), default=None, help="As for `belljar run`.")
@click.option(
    "-T", "task_args", multiple=True, metavar="NAME=VALUE", help="A task argument. Repeatable."
)
@click.option("--limit", default=None, metavar="N|A-B", help="Only these samples.")
@click.option(
    "--sample-id", default=None, metavar="ID,…", help="Only these samples, as for Inspect."
)
@click.option(
    "--sample-shuffle",
    is_flag=False,
    flag_value="true",
    default=None,
    metavar="[SEED]",
    help="Shuffled, as for Inspect; without a seed, any sample may run.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    target: str,
    policy: str,
    override: bool,  # noqa: FBT001 - click passes options by name
    allow_upstreams: bool,  # noqa: FBT001 - as above
    tier: str | None,
    task_args: tuple[str, ...],
    limit: str | None,
    sample_id: str | None,
    sample_shuffle: str | None,
    as_json: bool,  # noqa: FBT001 - as above
) -> int:
    """Say for each sample what is kept, changed, dropped and refused, which images are missing and
    what gets them, and which cell it gets on this host.

    The target is a task (a file, file@task or package/task), a compose file, a policy file or a
    preset. Nothing is started, built or fetched; a task's Python file is loaded, as by
    `belljar run`.

    \b
    Exit codes: 0 runs, as written or with the differences that are listed
      3 something is missing on this host: an image, a tool · 4 refused: the task or policy is wrong

    \b
    Examples:
      belljar check inspect_evals/gdm_in_house_ctf
      belljar check task.py@ctf --policy high --limit 10
      belljar check compose.yaml
    """
    from belljar.cli._facts import host_facts
    from belljar.cli.plan import image_facts
    from belljar.harness.preview import Host, exit_code, kind_of, outlooks
    from belljar.harness.preview import as_json as to_json
    from belljar.store.home import belljar_home

    if override and not policy:
        raise Misuse("--override needs --policy", hint="add --policy FILE, or leave --override out")
    options: OperatorOptions = {
        "run_policy": policy,
        "override": override,
        "tier": tier or "",
        "allow_upstreams": allow_upstreams,
    }
    kind, home = kind_of(target), belljar_home()
    chosen = {"--limit": limit, "--sample-id": sample_id, "--sample-shuffle": sample_shuffle}
    arguments = _inspect_arguments(target, task_args, chosen)
    host = Host(
        home=home,
        facts=lambda: host_facts(home, prove=False),
        image=lambda name: image_facts(home, name),
    )
    found = outlooks(_previews(kind, target, options, arguments), host)
    if as_json:
        click.echo(json.dumps(to_json(target, kind, found), indent=2))
    else:
        click.echo("\n".join(_lines(found)))
    return exit_code(found)


def _inspect_arguments(
    task: str, task_args: Sequence[str], chosen: Mapping[str, str | None]
) -> list[str]:
    """The task and its options as Inspect's command line has them."""
    arguments = [task, *(word for given in task_args for word in ("-T", given))]
    for option, value in chosen.items():
        arguments += [option, value] if value is not None else []
    return arguments


def _previews(
    kind: str, target: str, options: OperatorOptions, arguments: Sequence[str]
) -> list[Preview]:
    from belljar.harness.evaluate import check_tasks
    from belljar.harness.preview import check_compose, check_policy

    if kind == "policy":
        if options["run_policy"]:
            raise Misuse(
                "--policy goes with a task or a compose file, not with a policy",
                hint="leave it out",
            )
        return check_policy(target, options)
    return check_compose(target, options) if kind == "compose" else check_tasks(arguments, options)


def _lines(found: Sequence[Outlook]) -> Iterator[str]:
    """What a person reads; every word of a task is escaped."""
    from belljar.harness.preview import all_missing

    for each in found:
        yield from _group_lines(each)
        yield ""
    missing = all_missing(found)
    if missing:
        yield "Missing images:"
        yield from (
            f"  {printable(each.image)}: {printable(each.command, max_chars=600)}"
            for each in missing
        )
        yield ""
    counts = {
        word: sum(len(each.group.samples) for each in found if each.outcome == word)
        for word in _OUTCOMES
    }
    outcomes = ", ".join(f"{count} {_OUTCOMES[word]}" for word, count in counts.items() if count)
    images = f"; {len(missing)} image(s) missing" if missing else ""
    yield f"{sum(counts.values())} checked: {outcomes or 'no samples'}{images}"


def _group_lines(each: Outlook) -> Iterator[str]:
    first = each.group.first
    task = printable(first.task)
    whole = each.group.samples == ("",)
    yield (
        f"{task if whole else f'{task}, {samples_named(each.group.samples)}'}: "
        f"{_OUTCOMES[each.outcome]}"
    )
    if each.plan is not None:
        yield f"  cell: {_cell(each.plan)}"
    if first.kept:
        kept = (f"{fact.key} ({fact.detail})" for fact in first.kept)
        yield f"  kept: {printable(', '.join(kept), max_chars=400)}"
    yield from (f"  {sentence}" for sentence in sentences(first.differences))
    error = each.error or each.lacking
    if error is not None:
        # what a compose file is refused for stands above, each key for itself
        if not any(fact.kind is Kind.REFUSED for fact in first.differences):
            place = f"{printable(error.where)}: " if error.where else ""
            yield f"  {place}{printable(error.what, max_chars=1000)}"
        if error.hint:
            yield f"  hint: {printable(error.hint)}"


def _cell(plan: Plan) -> str:
    limits = plan.limits
    network = plan.policy.network
    services = f", with {', '.join(network.stand_ins)}" if network and network.stand_ins else ""
    real = [upstream.host for upstream in network.upstreams] if network is not None else []
    parts = (
        f"{plan.tier}{' (emulated)' if plan.emulated else ''}",
        f"image {plan.policy.image}",
        f"{limits.cpus} cpu(s)",
        f"{format_size(limits.memory_bytes)} memory",
        f"{format_size(limits.disk_bytes)} disk",
        f"{limits.processes} processes",
        format_duration(limits.lifetime_s),
        *((f"REAL: {', '.join(real)}",) if real else ()),
    )
    return printable(f"{', '.join(parts)}{services}", max_chars=600)
