"""`belljar doctor`, `belljar airgap` and `belljar fleet`."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from belljar.cli.console import MisuseError, json_option, print_json, table_lines
from belljar.errors import BelljarError, HostError
from belljar.host.cgroups import free_bytes
from belljar.host.model import TrialState
from belljar.image.kernel import current_kernel
from belljar.image.store import Store
from belljar.isolation.hold import RELEASE_HINT, read_hold
from belljar.plan.obstacles import KVM_HINTS, network_obstacles, tier_obstacles
from belljar.policy.limits import Tier
from belljar.store.home import belljar_home
from belljar.units import format_size, printable
from belljar.waiting import reported_if_slow

if TYPE_CHECKING:
    from belljar.host.model import HostFacts

State = Literal["ok", "note", "no"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table; `no` keeps cells from running."""

    what: str
    state: State
    detail: str
    hint: str = ""


@click.command()
@json_option("Print one JSON object: ready, tiers, checks and facts.")
@click.option("--no-prove", is_flag=True, help="Only look: start no test guest or container.")
def doctor(*, as_json: bool, no_prove: bool) -> int:
    """Check which tiers this host can run, and how to fix the others.

    Installs nothing. KVM is tested by booting a guest, an OCI runtime by running a container.
    Results are stored for each kernel and program; what failed is tested each time.

    \b
    States:
      ok    works
      note  something is limited or missing; cells still run
      no    microVM cells, or all cells, can't run

    \b
    Exit codes:
      0  microVM cells, which the default risk needs, can run here (emulated without KVM)
      3  they can't
    """
    from belljar.cli.policy import host_facts

    home = belljar_home()
    with reported_if_slow("trying what works here, once: up to half a minute"):
        facts = host_facts(home, prove=not no_prove, doubt=True)
        found = [*host_checks(facts), *_store_checks(home)]
        found += _switch_checks(home, facts, prove=not no_prove)
    failed = {check.what for check in found if check.state == "no"}
    ready = not failed
    # A tier's cells can run if all that they need is `ok`: no cell has a place without a store, and
    # only a microVM boots the guest kernel.
    bad = {check.what for check in found if check.state != "ok"}
    bad |= {"tier microvm"} if "guest kernel" in failed else set()
    usable = {check.what for check in found} - bad if "store" not in failed else set()
    tiers = {tier.value: f"tier {tier}" in usable for tier in Tier}
    if as_json:
        checks = [asdict(check) for check in found]
        print_json({"ready": ready, "tiers": tiers, "checks": checks, "facts": facts.to_json()})
    else:
        _show(found)
        named = ", ".join(tier for tier, can_run in tiers.items() if can_run)
        click.echo(f"\nTiers that can be used here: {named or 'none'}.")
    return 0 if ready else HostError.exit_code


def _switch_checks(home: Path, facts: HostFacts, *, prove: bool) -> Iterator[Check]:
    from anyio import run

    from belljar.isolation.proofs import prove_switch

    if (held := read_hold(home)) is not None:
        yield Check("held", "no", str(held), RELEASE_HINT)
    if not prove:
        return
    try:
        proven = [each for each in facts.runtimes if each.state is TrialState.PROVEN]
        if not proven:
            raise HostError("no runtime starts a container to halt")
        trial = run(partial(prove_switch, proven[0], home=home))
    except (BelljarError, OSError) as error:
        yield Check("kill switch", "note", f"not tested: {error}", "see the tiers above")
        return
    if trial.works:
        yield Check("kill switch", "ok", "works: halted a test container")
    else:
        what = f"could not halt a test container: {trial.reason}"
        hint = "report this as a bug, with the output of `belljar doctor --json`"
        yield Check("kill switch", "no", what, hint)


def host_checks(facts: HostFacts) -> Iterator[Check]:
    yield from _tiers(facts)
    yield from _virtualisation(facts)
    for tool in facts.tools:
        detail = f"{tool.version or 'unknown version'}, {tool.path}" if tool.path else "missing"
        if tool.needed_min:
            detail += f" (needed: {tool.needed_min} or newer)"
        bad: State = "no" if tool.needed and tool.tier == "microvm" else "note"
        state: State = "ok" if tool.ok else bad
        yield Check(tool.name, state, f"{detail}; used for {tool.use}", tool.hint)


def _tiers(facts: HostFacts) -> Iterator[Check]:
    for tier in Tier:
        found = tuple(tier_obstacles(tier, facts))
        # The others replace nothing stronger.
        state: State = "no" if tier is Tier.MICROVM else "note"
        for obstacle in found:
            yield Check(f"tier {tier}", state, obstacle.what, obstacle.hint)
        if found:
            continue
        how, hint, runtime = "works: a guest booted under KVM", "", facts.runtime(tier.value)
        state = "ok"
        if runtime is not None:
            how = f"works: {runtime.name} {runtime.version} ({runtime.path}) ran a test container"
            if runtime.state is not TrialState.PROVEN:
                state, hint = "note", runtime.hint
                how = f"{runtime.name} {runtime.version} ({runtime.path}): {runtime.reason}"
        elif facts.kvm.state is not TrialState.PROVEN:
            how = "can run, emulated; not tested before the first cell"
        yield Check(f"tier {tier}", state, how, hint)
    lacking = network_obstacles(facts)
    for obstacle in lacking:
        yield Check("ranges", "note", obstacle.what, obstacle.hint)
    if not lacking:
        yield Check("ranges", "ok", "policies can have a network")


def _virtualisation(facts: HostFacts) -> Iterator[Check]:
    kvm, userns, ids, group = facts.kvm, facts.userns, facts.ids, facts.cgroup
    if kvm.state is TrialState.PROVEN:
        yield Check("KVM", "ok", "works: a guest booted under it")
    else:
        state = {TrialState.UNPROVEN: "not tested", TrialState.REFUTED: "does not work"}
        what = f"{state.get(kvm.state, 'not available')}: {kvm.reason.rstrip('.')}."
        detail = f"{what} MicroVM cells are emulated, and risk `critical` is refused."
        yield Check("KVM", "note", detail, KVM_HINTS.get(kvm.state, ""))
    detail = userns.reason or "available"
    yield Check("user namespaces", "ok" if userns.available else "no", detail, userns.hint)
    own = "each cell gets user and group ids of its own"
    if not facts.is_root:
        own = "subordinate user and group ids, shared by all cells of this user"
    yield Check("ids", "ok" if ids.available else "note", ids.reason or own, ids.hint)
    usable = ", ".join(group.controllers) or "none"
    detail = f"version {group.version.value}; usable controllers: {usable} {group.reason}".rstrip()
    hint = "follow the hints of the tiers above, or run as root" if group.reason else ""
    yield Check("control groups", "note" if group.reason else "ok", detail, hint)


def _store_checks(home: Path) -> list[Check]:
    # The store need not exist yet: then its nearest directory decides.
    place = next(path for path in (home, *home.parents) if path.exists())
    found = [Check("store", "ok", str(home))]
    if not os.access(place, os.W_OK | os.X_OK):
        why = "is read-only" if os.statvfs(place).f_flag & os.ST_RDONLY else "can't be written to"
        hint = "set BELLJAR_HOME to a directory of your own that is writable"
        found = [Check("store", "no", f"{home}: {place} {why}", hint)]
    try:
        found.append(Check("guest kernel", "ok", current_kernel(home).version))
    except BelljarError as exc:
        found.append(Check("guest kernel", "no", exc.what, exc.hint))
    try:
        image = Store(home).find("default")
        detail = f"sha256:{image.digest[:12]}, {format_size(image.size_bytes)}"
        found.append(Check("default image", "ok", detail))
    except BelljarError as exc:
        found.append(Check("default image", "note", exc.what, "run `belljar setup`"))
    return found


def _show(found: list[Check]) -> None:
    rows = [(check.what, check.state, check.detail) for check in found]
    click.echo("\n".join(table_lines(rows, styled=1)))
    hints: dict[str, list[str]] = {}
    for check in found:
        if check.hint:
            hints.setdefault(check.hint, []).append(check.what)
    # Each once and in lines of its own: many are commands to copy.
    for hint, named in hints.items():
        click.echo(f"\n{printable(', '.join(dict.fromkeys(named)))}:")
        for line in hint.splitlines():
            click.echo(f"hint: {printable(line)}")


# --- airgap


@click.group()
def airgap() -> None:
    """Check which ways lead beyond this host."""


@airgap.command()
@json_option("Print one JSON object: air_gapped, findings.")
def check(*, as_json: bool) -> int:
    """Look and try whether anything leads beyond this host.

    Nothing is sent: the kernel is asked which way it would take. Each finding is absent, present or
    can't tell, with its evidence. Run it as root: others can't see all network namespaces, nor try
    TCP.

    \b
    Exit codes:
      0  all are absent: this host is air-gapped as far as it can be seen from here
      3  one is present, or can't be told
    """
    from belljar.airgap import check_air_gap, is_air_gapped

    findings = check_air_gap()
    is_gapped = is_air_gapped(findings)
    if as_json:
        listed = [asdict(each) for each in findings]
        print_json({"air_gapped": is_gapped, "findings": listed})
    else:
        rows = [[str(value) for value in asdict(each).values()] for each in findings]
        click.echo("\n".join(table_lines(rows, styled=1)))
        counts = Counter(each.state.value for each in findings)
        named = ", ".join(f"{count} {state}" for state, count in counts.items())
        click.echo(f"\n{'' if is_gapped else 'not '}air-gapped: {named}")
    return 0 if is_gapped else HostError.exit_code


# --- fleet


@click.group()
def fleet() -> None:
    """Share one evaluation among several machines: see docs/fleet.md."""


@fleet.command()
@click.option("--head", is_flag=True, help="Begin a cluster here; the other nodes join it.")
@click.option("--address", default="", metavar="HOST:PORT", help="The cluster to join.")
@click.option(
    "--ip",
    default="127.0.0.1",
    show_default=True,
    help="This machine's address for the other nodes: loopback or private.",
)
@click.option("--port", type=click.IntRange(1024, 65535), default=6379, show_default=True)
@click.option("--name", default="", help="What the record calls this node. Default: its hostname.")
@click.option("--cells", type=click.IntRange(1, 1024), help="Live cells at a time.")
def node(*, head: bool, address: str, ip: str, port: int, name: str, cells: int | None) -> int:
    """Make this machine a node, until Ctrl-C.

    What `belljar doctor` finds here decides which evaluations it gets. Ray lets whoever has the
    cluster's token run code here: set the same RAY_AUTH_TOKEN_PATH on each node, and never use a
    public address.
    """
    from belljar.cli.policy import host_facts
    from belljar.fleet.engine import CELLS, HARDWARE, MEMORY, check_private
    from belljar.fleet.node import NAME_VARIABLE
    from belljar.fleet.ray_engine import HINT_EXTRA

    if head == bool(address):
        raise MisuseError(
            "give --head or --address", hint="the first node begins the cluster: --head"
        )
    for host in filter(None, (ip, address.rpartition(":")[0])):
        check_private(host, where=f"belljar fleet node, {host}")
    program = Path(sys.executable).with_name("ray")
    if not program.exists():
        raise HostError("Ray is not installed", hint=HINT_EXTRA)
    facts = host_facts(belljar_home(), prove=True)
    tiers = [f"belljar_{tier}" for tier in Tier if not any(tier_obstacles(tier, facts))]
    if not tiers:
        raise HostError("no tier can be used here", hint="see `belljar doctor`")
    hardware = [HARDWARE] if facts.kvm.state is TrialState.PROVEN else []
    # A cell's start takes a processor for a moment. Of a resource of 0 Ray says nothing.
    room = {CELLS: cells or 2 * facts.cpus, MEMORY: max(1, free_bytes() >> 20)}
    offered = {**room, **dict.fromkeys([*tiers, *hardware], 1)}
    shown = ", ".join(f"{key.removeprefix('belljar_')} {n}" for key, n in offered.items())
    click.echo(f"belljar: this node offers {printable(shown)}", err=True)
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {NAME_VARIABLE: name} if name else {}
    begin = ["--head", f"--port={port}", "--include-dashboard=false"]
    words = [str(program), "start", "--block", *(begin if head else [f"--address={address}"])]
    words += [f"--node-ip-address={ip}", f"--resources={json.dumps(offered)}"]
    os.execve(words[0], words, environment)  # noqa: S606 - an argv list, no shell
