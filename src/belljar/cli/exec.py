"""`belljar exec` and `probe`: one command, or the probes, in a fresh cell."""

from __future__ import annotations

import base64
import codecs
import os
import re
import stat
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from belljar.cli import console
from belljar.errors import PolicyError, breach_stands
from belljar.host.settings import read_settings, within_settings
from belljar.policy.loaded import PRESETS, known_preset, with_image, with_tier
from belljar.units import parse_duration, printable
from belljar.waiting import FIRST_CELL, reported_if_slow

if TYPE_CHECKING:
    from belljar.cell.cell import Cell
    from belljar.channel import ExecOutput, Stream
    from belljar.ledger.rundir import RunDirectory
    from belljar.plan.model import Plan
    from belljar.policy.loaded import LoadedPolicy
    from belljar.probe.model import ProbeReport

COMMAND_KEY = "belljar.command"
_HINT_DASHES = "put it after `--`: `belljar exec -- uname -a`"


class CommandAfterDashes(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[COMMAND_KEY] = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)


def _time_limit(text: str | None) -> float | None:
    timeout_s = None if text is None else parse_duration(text)
    if timeout_s == 0:
        raise ValueError("a command needs time; leave it out for the policy's exec_timeout")
    return timeout_s


@click.command(
    "exec",
    cls=CommandAfterDashes,
    context_settings={"allow_extra_args": True},
    options_metavar="[OPTIONS]",
)
@console.policy_argument("[POLICY|PRESET] -- CMD…")
@console.tier_option()
@click.option("--image", default="", help="The cell's image, instead of the policy's.")
@console.json_option("Print one JSON object instead of passing the streams through.")
@click.option("--user", help="Run as this user of the image (name, uid or uid:gid).")
@click.option("--workdir", default="", help="Run in this directory of the cell.")
@console.variables_option("--env", "env", "Set an environment variable. Repeatable.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="DURATION",
    callback=console.parsed_by(_time_limit),
    help="Kill the command and all processes it started after this long (30s, 5m).",
)
@click.pass_context
def exec_command(
    ctx: click.Context,
    policy: str | None,
    tier: str | None,
    *,
    image: str,
    as_json: bool,
    user: str | None,
    workdir: str,
    env: dict[str, str],
    timeout_s: float | None,
) -> int:
    """Run one command in a fresh cell, which is destroyed afterwards.

    POLICY is a policy file or a preset (low, medium, high, critical); default: high. Standard
    input, output and error pass through; on a terminal, control characters are escaped. The exit
    code is the command's (124 when it timed out). Everything is recorded:
    `belljar ledger show last`.

    Without a command, the entrypoint and command of the image are run.

    \b
    Examples:
      belljar exec -- uname -a
      belljar exec policy.yaml --json -- python3 -c 'print(6*7)'
      echo hello | belljar exec critical -- cat
      belljar exec low --tier gvisor -- dmesg
      belljar exec low --image python:3.12 -- python3 -V
    """
    argv: list[str] = ctx.meta.get(COMMAND_KEY, [])
    if not argv and ((policy is None and not image) or COMMAND_KEY in ctx.meta):
        raise console.MisuseError("there is no command to run", hint=_HINT_DASHES)
    is_policy = policy is None or policy in PRESETS or Path(policy).exists()
    if ctx.args or not (argv or is_policy):
        word = printable(ctx.args[0] if ctx.args else str(policy), max_chars=100)
        what = f"`{word}` is neither a policy nor after `--`, as a command is"
        raise console.MisuseError(what, hint=_HINT_DASHES)
    from belljar.cell.open import open_cell
    from belljar.cell.parts import start_run

    async def in_cell() -> int:
        typed = [*sys.argv[:1], "exec", *([policy] if policy else []), "--", *argv]
        with start_run("exec", " ".join(argv[:3]) or image, typed) as run:
            loaded = typed_policy(policy, tier, image=image)
            async with AsyncExitStack() as stack:
                with reported_if_slow(FIRST_CELL):
                    cell = await stack.enter_async_context(open_cell(loaded, run=run))
                if not as_json:
                    report_skipped_tiers(cell.plan)
                command = argv or list(cell.image_command)
                if not command:
                    what = "no command is given, and the image has none"
                    where = f"image {cell.plan.policy.image}"
                    raise PolicyError(what, where=where, hint=_HINT_DASHES)
                output = await cell.exec(
                    command,
                    input=standard_input(),
                    on_output=None if as_json else passing_on(),
                    user=user,
                    cwd=workdir,
                    env=env,
                    timeout_s=timeout_s,
                )
                timings_ms = dict(cell.timings_ms) | {"command": round(output.duration_s * 1000, 3)}
            if not as_json:
                _explain(output)
            code = 124 if output.timed_out else output.returncode  # as `timeout` of coreutils
            run.finish("completed", exit_code=code)
        if as_json:  # when the record is sealed: what fails until then is the one object
            timings_ms["destroy"] = cell.destruction.duration_ms if cell.destruction else 0.0
            console.print_json(_as_object(cell, output, timings_ms, str(run.path)))
        return code

    return console.run_async(in_cell)


def typed_policy(
    policy: str | None, tier: str | None, *, image: str = "", announces: bool = True
) -> LoadedPolicy:
    """Return the typed policy, under this host's settings. Raises as `resolve_here`.

    A raised risk, and with `announces` what leaves this host, goes to standard error.
    """
    settings = read_settings()
    found = known_preset(policy, settings.least_risk)
    if found is None:
        from belljar.policy.load import resolve_policy

        found = resolve_policy(policy)
    asked = with_image(with_tier(found, tier), image)
    loaded = within_settings(asked, settings)
    if loaded != asked:
        risks = f"risk `{asked.policy.risk}` is raised to `{loaded.policy.risk}`"
        console.notice(f"{risks}, as {settings.least_risk_from} says")
    if announces and loaded.policy.network is not None:
        from belljar.plan.explain import announcements

        for sentence in announcements(loaded):
            click.echo(f"belljar: {sentence}", err=True)
    return loaded


def report_skipped_tiers(plan: Plan) -> None:
    for sentence in plan.skipped_tiers:
        click.echo(f"belljar: {sentence}", err=True)


def _as_object(
    cell: Cell, output: ExecOutput, timings_ms: dict[str, float], run_dir: str
) -> dict[str, object]:
    found: dict[str, object] = {"returncode": output.returncode}
    for name, content in (("stdout", output.stdout), ("stderr", output.stderr)):
        # JSON holds text: what isn't UTF-8 comes in base64 as well.
        found[name] = content.decode("utf-8", "replace")
        if found[name] != content.decode("utf-8", "ignore"):
            found[f"{name}_base64"] = base64.b64encode(content).decode()
    same = ("stdout_dropped_bytes", "stderr_dropped_bytes", "timed_out", "out_of_memory")
    return found | {
        **{name: getattr(output, name) for name in same},
        "not_started": output.why_not_started or None,
        "tier": cell.tier,
        "skipped_tiers": list(cell.plan.skipped_tiers),
        "layers": [layer.name for layer in cell.plan.layers],
        "emulated": cell.emulated,
        "timings_ms": {name: round(value, 3) for name, value in timings_ms.items()},
        "cell": cell.id,
        "destroyed": cell.destruction.clean if cell.destruction else False,
        "run_dir": run_dir,
    }


def passing_on() -> Callable[[Stream, bytes], None]:
    from belljar.channel import Stream

    targets = {Stream.STDOUT: sys.stdout, Stream.STDERR: sys.stderr}
    # A chunk may end within a character.
    decoders = {
        stream: codecs.getincrementaldecoder("utf-8")("backslashreplace") for stream in targets
    }

    def pass_on(stream: Stream, chunk: bytes) -> None:
        target = targets[stream]
        if target.isatty():
            text = decoders[stream].decode(chunk)
            # `printable` would escape line ends and tabs, too.
            target.write(
                re.sub(r"[^\n\t]+", lambda part: printable(part[0], max_chars=len(text)), text)
            )
        else:
            target.buffer.write(chunk)
        target.flush()

    return pass_on


def _explain(output: ExecOutput) -> None:
    if output.timed_out:
        console.notice("the command timed out; it and all processes it started were killed")
    if output.not_started_errno is not None:
        console.notice(f"the command did not start: {output.why_not_started}")
        if output.stage == "user":
            hint = "name one of the image's, or a uid, with --user or as the policy's `user`"
            click.echo(f"  hint: {hint}", err=True)
    if output.out_of_memory:
        console.notice("the command ran out of memory")
    streams = (("output", output.stdout_dropped_bytes), ("error", output.stderr_dropped_bytes))
    for name, dropped in streams:
        if dropped:
            what = f"{dropped} bytes of standard {name} were dropped"
            console.notice(f"{what}: more than the policy's `output`")


def standard_input() -> AsyncIterator[bytes] | None:
    try:
        kind = os.fstat(0).st_mode
    except OSError:
        return None
    can_be_polled = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(0)

    async def read() -> AsyncIterator[bytes]:
        import anyio

        while True:
            if can_be_polled:
                await anyio.wait_readable(0)
            if not (chunk := os.read(0, 1 << 16)):
                return
            yield chunk

    return read()


@click.command("probe", options_metavar="[OPTIONS]")
@console.policy_argument()
@console.tier_option()
@click.option("--all", "every", is_flag=True, help="Every probe, and once more as root.")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="Or one probe's name.")
@console.json_option()
def probe(
    policy: str | None, tier: str | None, *, every: bool, groups: tuple[str, ...], as_json: bool
) -> int:
    """Try to get out of a fresh cell, from inside, and let the host judge what came of it.

    POLICY is a policy file or a preset; default: high. The host looks as well: at a canary file,
    listeners, a sentinel process, and the ids, namespaces and routes of the cell's processes. What
    the cell says can make a breach, never hide one. Recorded: `belljar ledger show last`.

    The exit code is 2 if it is breached, or void as evidence is missing.

    \b
    Examples:
      belljar probe
      belljar probe critical --all
      belljar probe low --tier gvisor --all --json
      belljar probe --group fingerprint
    """
    from belljar.probe.catalogue import PROBES
    from belljar.probe.run import ALL, QUICK, chosen

    wanted: str | list[str] = list(groups) if groups else ALL if every else QUICK
    try:
        chosen(PROBES, wanted)
    except ValueError as error:
        hint = f"use one of {', '.join(sorted({each.group for each in PROBES}))}, or a probe's name"
        raise console.MisuseError(str(error), hint=hint) from None
    return console.run_async(_probe, policy, tier, wanted, as_json=as_json)


async def _probe(
    policy: str | None, tier: str | None, wanted: str | list[str], *, as_json: bool
) -> int:
    from belljar.cell.parts import start_run
    from belljar.probe.model import worst
    from belljar.probe.run import ALL

    with ExitStack() as told:  # left after the run, whose sealing may fail
        with start_run("probe", policy or "high", sys.argv[1:]) as run:
            loaded = typed_policy(policy, tier)
            hint = f"see `belljar ledger show {run.run_id} --kind probe`"
            cell, report = await _tried(loaded, run, wanted, None)
            told.enter_context(breach_stands(report.verdict.value, hint=hint))
            reports = [report]
            # A workload that is root has tried as root already.
            if wanted == ALL and cell.plan.user not in {"", "0", "root"}:
                reports.append((await _tried(loaded, run, wanted, "root"))[1])
            verdict = worst(report.verdict for report in reports).value
            told.enter_context(breach_stands(verdict, hint=hint))
            # Void is no better than breached for a caller that only looks at the code
            code, outcome = (0, "completed") if verdict == "contained" else (2, "failed")
            run.finish(outcome, exit_code=code)
        if as_json:
            console.print_json(
                {
                    "verdict": verdict,
                    "tier": cell.tier,
                    "emulated": cell.emulated,
                    "layers": [layer.name for layer in cell.plan.layers],
                    "reports": [each.to_json() for each in reports],
                    "run_dir": str(run.path),
                }
            )
        else:
            _show(cell, reports, verdict)
    return code


async def _tried(
    loaded: LoadedPolicy, run: RunDirectory, wanted: str | list[str], user: str | None
) -> tuple[Cell, ProbeReport]:
    from belljar.cell.open import open_range
    from belljar.events import Actor
    from belljar.probe.run import probe_cell

    async with open_range(loaded, run=run) as opened:
        cell = opened.cell
        report = await probe_cell(
            cell,
            which=wanted,
            recorder=run.recorder,
            router=opened.routers.get(cell.id),
            user=user,
            actor=Actor.OPERATOR,
        )
    return cell, report


def _show(cell: Cell, reports: Sequence[ProbeReport], verdict: str) -> None:
    from belljar.probe.catalogue import PROBES

    explained = {each.name: each for each in PROBES}
    for report in reports:
        rows: list[tuple[str, ...]] = [("probe", "verdict", "outcome", "seen by", "what decided")]
        breaches = []
        for finding in report.findings:
            reported = f"{finding.outcome.value if finding.outcome else '-'} {finding.detail}"
            word = f"{finding.verdict.value}{', known' if finding.known else ''}"
            decided = finding.known or finding.seen
            rows.append((finding.name, word, reported.strip(), finding.seen_by.value, decided))
            if finding.verdict.value == "breached" and finding.name in explained:
                about = explained[finding.name]
                tried = f"{about.name}: {about.tries} A breach: {about.breach}"
                breaches.append(f"{tried} Why it matters: {about.why}")
        click.echo(f"\nas {printable(report.user or cell.plan.user) or 'root'}")
        click.echo("\n".join(console.table_lines(rows, styled=1)))
        for text in breaches:
            click.echo(click.style(text, **console.STYLES["breached"]))
        if report.problem:
            problem = printable(f"problem: {report.problem}")
            click.echo(click.style(problem, **console.STYLES["void"]))
    count = sum(len(report.findings) for report in reports)
    took_ms = sum(report.duration_ms for report in reports)
    total = f"{verdict}: {count} attempts in {took_ms:.0f} ms, {cell.tier} tier"
    if cell.emulated:
        total += "; emulated: this host has no hardware virtualisation that works"
    click.echo("\n" + click.style(total, **console.STYLES[verdict]))
