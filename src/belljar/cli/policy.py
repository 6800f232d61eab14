"""`belljar policy`, `plan` and `check`."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from belljar.cli import console
from belljar.cli.cells import warn_if_held
from belljar.cli.exec import typed_policy
from belljar.errors import HostError, PolicyError
from belljar.plan.explain import render_plan
from belljar.plan.make import make_plan
from belljar.store.home import belljar_home
from belljar.units import format_duration, format_size, printable
from belljar.waiting import LOADING, reported_if_slow

if TYPE_CHECKING:
    from belljar.harness.preview import Outlook
    from belljar.host.model import HostFacts
    from belljar.plan.model import ImageFacts, Plan

# Longer lines of prose are hard to read, however wide the terminal.
MAX_WIDTH: Final = 110
_OUTCOMES: Final = {
    "runs": "runs as written",
    "differs": "runs, with differences",
    "missing": "can't run on this host yet",
    "refused": "refused",
}


@click.group()
def policy() -> None:
    """Check a policy; print the schema or a preset.

    \b
    Examples:
      belljar policy show high > policy.yaml
      belljar policy check policy.yaml
    """


@policy.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@console.json_option("Print one JSON object: ok, problems, and the policy with all defaults.")
def check_file(file: Path, *, as_json: bool) -> int:
    """Check the policy FILE: list all wrong fields, or else what is wrong with its files.

    Those are the files that it copies and that its stand-ins use. Whether this host can run it is
    not checked: see `belljar plan FILE`.
    """
    from belljar.network.stand_ins.author import examine_all
    from belljar.policy.load import read_policy_file, refusal
    from belljar.policy.loaded import PRESETS

    if str(file) in PRESETS and not file.exists():
        hint = f"print it: `belljar policy show {file}`"
        raise console.MisuseError("a preset needs no check", hint=hint)
    text, base = read_policy_file(file), file.parent.absolute()
    policy, found = examine_all(text, source=str(file), base=base, default_name=file.stem)
    ok = policy is not None and not found
    if as_json:
        shown = policy.to_json() if policy is not None and ok else None
        problems = [
            {"line": p.mark.line, "column": p.mark.column, "field": p.field, "message": p.message}
            for p in found
        ]
        console.print_json({"file": str(file), "ok": ok, "problems": problems, "policy": shown})
        return 0 if ok else PolicyError.exit_code
    if policy is None or found:
        raise refusal(found, str(file), hint="")
    click.echo(f"{printable(str(file))}: valid, risk {policy.risk}, image {policy.image}")
    if policy.network is not None and policy.network.upstreams:
        real = ", ".join(upstream.host for upstream in policy.network.upstreams)
        click.echo(f"  {_in_red(f'REAL hosts: {real}')}")
    return 0


@policy.command()
def schema() -> None:
    """Print the JSON Schema of policy files.

    Editors use it to complete and check fields. Save it as policy.schema.json, and begin your
    policy with this line: `# yaml-language-server: $schema=policy.schema.json`
    """
    from belljar.policy.model import policy_schema

    console.print_json(policy_schema())


@policy.command()
@click.argument("preset")
def show(preset: str) -> None:
    """Print a preset (low, medium, high or critical) as a policy file."""
    from belljar.policy.load import load_preset

    click.echo(load_preset(preset).text.decode(), nl=False)


@click.command()
@console.policy_argument()
@console.tier_option()
@console.json_option("Print the whole plan as one JSON object.")
@click.option("--no-prove", is_flag=True, help="Boot no test guest, run no test container.")
def plan(policy: str | None, tier: str | None, *, as_json: bool, no_prove: bool) -> int:
    """Print what a cell of POLICY could do on this host.

    Shows what the cell can read, write, reach and consume, and the layers that isolate it. No cell
    is started. POLICY is a policy file or a preset (low, medium, high, critical); default: high.
    """
    loaded, home = typed_policy(policy, tier, announces=False), belljar_home()
    if loaded.policy.network is not None:
        from belljar.network.stand_ins.author import check_stand_ins

        check_stand_ins(loaded)
    facts, image = host_facts(home, prove=not no_prove), image_facts(home, loaded.policy.image)
    made = make_plan(loaded.policy, facts, image, base=loaded.base)
    if as_json:
        console.print_json(made.to_json())
    else:
        width = min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 0)).columns)
        lines = render_plan(made, width=width, real=_in_red)
        click.echo("\n".join(lines))
    return HostError.exit_code if warn_if_held() else 0


def _in_red(text: str) -> str:
    return click.style(text, fg="red", bold=True)


def host_facts(home: Path, *, prove: bool, doubt: bool = False) -> HostFacts:
    """Try out unknown facts with `prove`; with `doubt`, also what failed."""
    from belljar.cell.parts import find_facts
    from belljar.image.kernel import current_kernel

    kernel = partial(current_kernel, home) if prove else None
    return find_facts(home, kernel=kernel, runtimes=prove, doubt=doubt)


def image_facts(home: Path, ref: str) -> ImageFacts | None:
    from belljar.cell.parts import facts_of
    from belljar.image.store import Store

    try:
        return facts_of(Store(home).find(ref), ref)
    except HostError:
        return None


@click.command(
    "check",
    options_metavar="[OPTIONS]",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("target", metavar="TASK|COMPOSE|DOCKERFILE|POLICY")
@console.operator_options
@console.json_option()
@click.argument("inspect_args", nargs=-1, type=click.UNPROCESSED, metavar="")
def check(
    target: str,
    *,
    policy: str,
    allow_upstreams: bool,
    tier: str | None,
    as_json: bool,
    inspect_args: tuple[str, ...],
) -> int:
    """Show how a task would run here, without running it.

    Lists for each sample its cell and what is changed, granted, dropped or refused. Names missing
    images and the commands that get them. TASK is file.py, file.py@task or package/task; POLICY is
    a file or a preset.

    Nothing is started, built or fetched. A task's Python file is loaded, as by `belljar run`, and
    samples are chosen by Inspect's options: -T NAME=VALUE, --limit, --sample-id, --sample-shuffle.

    The exit code is 0 if all samples run, 3 if this host lacks something, 4 if one is refused.

    \b
    Examples:
      belljar check inspect_evals/gdm_in_house_ctf
      belljar check task.py@ctf --policy high --limit 10
      belljar check compose.yaml
    """
    from belljar.harness import preview
    from belljar.harness.options import RunRequest

    kind, home = preview.kind_of(target), belljar_home()
    if kind == "policy" and policy:
        raise console.MisuseError(f"--policy can't be combined with the policy `{target}`")
    if kind in {"compose", "policy"} and inspect_args:
        raise console.MisuseError(f"{printable(inspect_args[0])} is for tasks alone")
    request = RunRequest(
        inspect_args=[target, *inspect_args],
        policy=policy,
        tier=tier or "",
        allow_upstreams=allow_upstreams,
    )
    if kind in {"compose", "policy"}:
        check_file = preview.check_policy if kind == "policy" else preview.check_compose
        previews = check_file(target, request.operator())
    else:
        with reported_if_slow(LOADING):
            from belljar.harness.evaluate import load_only

            previews = load_only(request)[-1]
    found = preview.outlooks(
        previews,
        home,
        facts=lambda: host_facts(home, prove=False),
        image_of=lambda name: image_facts(home, name),
    )
    if as_json:
        console.print_json(preview.as_json(target, kind, found))
    else:
        click.echo("\n".join(_lines(found)))
    return max((each.exit_code for each in found), default=0)


def _lines(found: Sequence[Outlook]) -> Iterator[str]:
    from belljar.differences import DifferenceKind, samples_named, sentences
    from belljar.harness.preview import all_missing

    for each in found:
        first, samples = each.first, each.samples
        named = f", {samples_named(samples)}" if samples else ""
        yield f"{printable(first.task)}{named}: {_OUTCOMES[each.outcome]}"
        if each.plan is not None:
            yield f"  cell: {_cell(each.plan)}"
        yield from (f"  {sentence}" for sentence in sentences(first.differences))
        error = first.error
        # What a compose file is refused for stands above, each key for itself.
        if error and not any(fact.kind is DifferenceKind.REFUSED for fact in first.differences):
            place = f"{printable(error.where)}: " if error.where else ""
            first_line, *problems = error.what.splitlines() or [""]
            yield f"  {place}{printable(first_line, max_chars=1000)}"
            yield from (f"  {printable(line, max_chars=1000)}" for line in problems)
        if error and error.hint:
            yield f"  hint: {printable(error.hint)}"
        yield ""
    missing = all_missing(found)
    if missing:
        yield "Missing images, and the commands that get them:"
        for image in missing:
            yield f"  {printable(image.image)}: {printable(image.command, max_chars=600)}"
        yield ""
    counts = Counter[str]()
    for each in found:
        counts[each.outcome] += len(each.samples) or 1
    outcomes = ", ".join(f"{_OUTCOMES[word]}: {count}" for word, count in counts.items())
    yield f"{counts.total()} checked; {outcomes or 'there are no samples'}"


def _cell(plan: Plan) -> str:
    limits, network = plan.limits, plan.policy.network
    parts = [
        f"{plan.tier}{' (emulated)' if plan.emulated else ''}",
        f"image {plan.policy.image}",
        f"{limits.cpus} CPU(s), {format_size(limits.memory_bytes)} memory",
        f"{format_size(limits.disk_bytes)} disk, {limits.processes} processes",
        f"lifetime {format_duration(limits.lifetime_s)}",
    ]
    if network is not None and network.upstreams:
        parts.append(f"REAL hosts: {', '.join(upstream.host for upstream in network.upstreams)}")
    if network is not None and network.stand_ins:
        parts.append(f"stand-ins: {', '.join(network.stand_ins)}")
    return printable(", ".join(parts), max_chars=600)
