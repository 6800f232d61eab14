"""`belljar policy`, `plan` and `check`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from belljar.cli.console import (
    Misuse,
    json_option,
    policy_argument,
    print_json,
    terminal_width,
    tier_option,
)
from belljar.cli.exec import typed_policy
from belljar.units import format_duration, format_size, printable

if TYPE_CHECKING:
    from belljar.harness.operator import OperatorOptions
    from belljar.harness.preview import Outlook
    from belljar.host import HostFacts
    from belljar.plan import ImageFacts, Plan
    from belljar.policy import Policy
    from belljar.policy.load import Examined

MAX_WIDTH: Final = 110
_OUTCOMES: Final = {
    "runs": "runs as written",
    "differs": "runs, with differences",
    "missing": "can't run here yet",
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
@json_option(
    "Print one JSON object: ok, problems with line and column, and the policy with all defaults."
)
def check_file(file: Path, *, as_json: bool) -> int:
    """Say whether FILE is a valid policy, and all that is wrong with it and with the files that its
    stand-ins are made from.

    Knows nothing of this host: `belljar plan FILE` says whether it can be carried out here. Exit
    code 0 when it is valid, 4 when not.
    """
    from belljar.errors import PolicyError
    from belljar.policy import PRESETS, demanded_tier
    from belljar.policy.load import refusal

    if str(file) in PRESETS and not file.exists():
        raise PolicyError(
            f"`{file}` is a preset, and presets need no check",
            hint=f"see it with `belljar policy show {file}`",
        )
    if as_json:
        return _check_json(file)
    found = _examined(file)
    policy = found.policy
    if policy is None or found.problems:
        raise refusal(found.problems, str(file), hint="")
    click.echo(
        f"{printable(str(file))}: ok — `{policy.name}`, risk {policy.risk}, at least tier "
        f"{demanded_tier(policy.risk, policy.tier)}, image {policy.image}, "
        f"network {_network(policy)}"
    )
    return 0


def _examined(file: Path) -> Examined:
    from belljar.network.stand_ins.author import examine_all
    from belljar.policy.load import read_policy_file

    text = read_policy_file(file)
    return examine_all(text, source=str(file), base=file.parent.absolute(), default_name=file.stem)


def _network(policy: Policy) -> str:
    network = policy.network
    if network is None:
        return "none"
    count, default = len(network.stand_ins), network.default.value
    words = [
        f"{count} stand-in{'' if count == 1 else 's'}",
        "unknown names simulated" if default == "simulate" else "unknown names don't exist",
    ]
    if network.sink:
        words.append("a sink")
    if real := ", ".join(upstream.host for upstream in network.upstreams):
        words.append(_in_red(f"REAL: {real}"))
    return f"({', '.join(words)})"


def _check_json(file: Path) -> int:
    from belljar.errors import PolicyError

    problems: list[dict[str, Any]]
    try:
        policy, found, _ = _examined(file)
    except PolicyError as exc:
        policy = None
        problems = [{"line": None, "column": None, "field": "", "message": exc.what}]
    else:
        problems = [
            {"line": p.mark.line, "column": p.mark.column, "field": p.field, "message": p.message}
            for p in found
        ]
    ok = policy is not None and not problems
    shown = policy.to_json() if policy is not None and ok else None
    print_json({"file": str(file), "ok": ok, "problems": problems, "policy": shown})
    return 0 if ok else PolicyError.exit_code


@policy.command()
def schema() -> None:
    """Print the JSON Schema of a policy file.

    Save it, and point your editor at it with this first line of a policy:
    `# yaml-language-server: $schema=policy.schema.json`
    """
    from belljar.policy import policy_schema

    print_json(policy_schema())


@policy.command()
@click.argument("preset")
def show(preset: str) -> None:
    """Print a preset (low, medium, high or critical) as a policy file."""
    from belljar.policy import load_preset

    click.echo(load_preset(preset).text.decode(), nl=False)


# --- plan


@click.command()
@policy_argument()
@tier_option()
@json_option("Print the whole plan as one JSON object.")
@click.option(
    "--no-prove",
    is_flag=True,
    help="Don't boot a guest or run a container, even if that was never tried here.",
)
def plan(policy: str | None, tier: str | None, *, as_json: bool, no_prove: bool) -> int:
    """Print what a cell of POLICY can read, write, reach and consume here, and which layers are
    between it and this host.

    POLICY is a policy file or a preset (low, medium, high, critical); default: high. No cell is
    started. Exit code 0 when one could be made (once its image is built), 3 when this host can't do
    what the policy demands or is held, 4 when the policy is wrong.
    """
    from belljar.cli.cells import warn_if_held
    from belljar.errors import HostError
    from belljar.plan import make_plan, render_plan
    from belljar.store.home import belljar_home

    loaded, home = typed_policy(policy, tier, announces=False), belljar_home()
    if loaded.policy.network is not None:
        from belljar.network.stand_ins.author import check_stand_ins

        check_stand_ins(loaded)
    facts, image = host_facts(home, prove=not no_prove), image_facts(home, loaded.policy.image)
    made = make_plan(loaded.policy, facts, image, base=loaded.base)
    if as_json:
        print_json(made.to_json())
    else:
        width = min(MAX_WIDTH, terminal_width(sys.stdout) or MAX_WIDTH)
        lines = render_plan(made, width=width, real=_in_red)
        click.echo("\n".join(lines))
    return HostError.exit_code if warn_if_held() else 0


def _in_red(text: str) -> str:
    return click.style(text, fg="red", bold=True)


def host_facts(home: Path, *, prove: bool, again: bool = False, doubt: bool = False) -> HostFacts:
    """With `prove`, unknown facts are tried out here.

    `again`: tried anew. `doubt`: a runtime that failed is tried anew, however recently that was.
    """
    from belljar.host import KvmProof
    from belljar.isolation.trials import find_facts

    if not prove:
        return find_facts(home)
    from belljar.isolation.proofs import runtime_proof

    def prove_kvm() -> KvmProof:
        from belljar.image.kernel import current_kernel

        # The kernel first: without one there is nothing to try, and the error says so.
        kernel = current_kernel(home)
        from belljar.isolation.proofs import kvm_proof

        return kvm_proof(kernel, home)()

    prove_runtime = runtime_proof(home)
    return find_facts(
        home, prove_kvm=prove_kvm, prove_runtime=prove_runtime, prove_again=again, doubt=doubt
    )


def image_facts(home: Path, ref: str) -> ImageFacts | None:
    """The plan's image facts; None when the store lacks it."""
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


# --- check


@click.command("check", options_metavar="[OPTIONS]")
@click.argument("target", metavar="TASK|COMPOSE|POLICY")
@click.option(
    "--policy", "run_policy", default="", metavar="FILE|PRESET", help="As for `belljar run`."
)
@click.option("--override", is_flag=True, help="As for `belljar run`.")
@click.option("--allow-upstreams", is_flag=True, help="As for `belljar run`.")
@tier_option("As for `belljar run`.")
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
@json_option()
def check(
    target: str,
    *,
    run_policy: str,
    override: bool,
    allow_upstreams: bool,
    tier: str | None,
    task_args: tuple[str, ...],
    limit: str | None,
    sample_id: str | None,
    sample_shuffle: str | None,
    as_json: bool,
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
    from belljar.harness.evaluate import check_tasks
    from belljar.harness.preview import (
        Host,
        check_compose,
        check_policy,
        exit_code,
        kind_of,
        outlooks,
    )
    from belljar.harness.preview import as_json as to_json
    from belljar.store.home import belljar_home

    if override and not run_policy:
        raise Misuse("--override needs --policy", hint="add --policy FILE, or leave --override out")
    options: OperatorOptions = {
        "run_policy": run_policy,
        "override": override,
        "tier": tier or "",
        "allow_upstreams": allow_upstreams,
    }
    kind, home = kind_of(target), belljar_home()
    if kind == "policy" and run_policy:
        raise Misuse(
            "--policy goes with a task or a compose file, not with a policy", hint="leave it out"
        )
    chosen = {"--limit": limit, "--sample-id": sample_id, "--sample-shuffle": sample_shuffle}
    arguments = [target, *(word for given in task_args for word in ("-T", given))]
    for option, value in chosen.items():
        arguments += [option, value] if value is not None else []
    host = Host(
        home=home,
        facts=lambda: host_facts(home, prove=False),
        image=lambda name: image_facts(home, name),
    )
    if kind == "compose":
        previews = check_compose(target, options)
    elif kind == "policy":
        previews = check_policy(target, options)
    else:
        previews = check_tasks(arguments, options)
    found = outlooks(previews, host)
    if as_json:
        print_json(to_json(target, kind, found))
    else:
        click.echo("\n".join(_lines(found)))
    return exit_code(found)


def _lines(found: Sequence[Outlook]) -> Iterator[str]:
    """What a person reads; task words are escaped."""
    from belljar.differences import Kind, samples_named, sentences
    from belljar.harness.preview import all_missing

    for each in found:
        first, samples = each.group.first, each.group.samples
        named = "" if samples == ("",) else f", {samples_named(samples)}"
        yield f"{printable(first.task)}{named}: {_OUTCOMES[each.outcome]}"
        if each.plan is not None:
            yield f"  cell: {_cell(each.plan)}"
        if first.kept:
            kept = (f"{fact.key} ({fact.detail})" for fact in first.kept)
            yield f"  kept: {printable(', '.join(kept), max_chars=400)}"
        yield from (f"  {sentence}" for sentence in sentences(first.differences))
        error = each.error or each.lacking
        # What a compose file is refused for stands above, each key for itself.
        if error and not any(fact.kind is Kind.REFUSED for fact in first.differences):
            place = f"{printable(error.where)}: " if error.where else ""
            yield f"  {place}{printable(error.what, max_chars=1000)}"
        if error and error.hint:
            yield f"  hint: {printable(error.hint)}"
        yield ""
    missing = all_missing(found)
    if missing:
        yield "Missing images:"
        for image in missing:
            yield f"  {printable(image.image)}: {printable(image.command, max_chars=600)}"
        yield ""
    counts = {
        word: sum(len(each.group.samples) for each in found if each.outcome == word)
        for word in _OUTCOMES
    }
    outcomes = ", ".join(f"{count} {_OUTCOMES[word]}" for word, count in counts.items() if count)
    images = f"; {len(missing)} image(s) missing" if missing else ""
    yield f"{sum(counts.values())} checked: {outcomes or 'no samples'}{images}"


def _cell(plan: Plan) -> str:
    limits, network = plan.limits, plan.policy.network
    parts = [
        f"{plan.tier}{' (emulated)' if plan.emulated else ''}",
        f"image {plan.policy.image}",
        f"{limits.cpus} cpu(s)",
        f"{format_size(limits.memory_bytes)} memory",
        f"{format_size(limits.disk_bytes)} disk",
        f"{limits.processes} processes",
        format_duration(limits.lifetime_s),
    ]
    if network is not None and network.upstreams:
        parts.append(f"REAL: {', '.join(upstream.host for upstream in network.upstreams)}")
    if network is not None and network.stand_ins:
        parts.append(f"with {', '.join(network.stand_ins)}")
    return printable(", ".join(parts), max_chars=600)
