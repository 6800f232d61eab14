"""`belljar doctor`: what this host can do, and hints."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from belljar.cli.console import json_option, print_json
from belljar.errors import HostError
from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.host import HostFacts

State = Literal["ok", "note", "no"]
_LOW_DISK_MIB = 4096
_LOW_MEMORY_MIB = 2048
_LOW_OPEN_FILES = 4096


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table.

    `no` keeps cells from running; `note` takes something away, which the detail says.
    """

    what: str
    state: State
    detail: str
    hint: str = ""


@click.command()
@json_option("Print one JSON object: ready, tiers, checks and facts.")
@click.option(
    "--no-prove",
    is_flag=True,
    help="Don't boot a guest or run a container to prove that it can be done.",
)
@click.option(
    "--prove-again",
    is_flag=True,
    help="Boot a guest and run containers even if the results are remembered.",
)
def doctor(*, as_json: bool, no_prove: bool, prove_again: bool) -> int:
    """Say what this host can do in each tier, and why not. Installs and changes nothing.

    KVM counts only when a guest really boots under it, an OCI runtime only when it ran a container;
    the results are remembered per kernel and program, but a runtime that failed is tried each time.
    Exit code 0 when microVM cells, which the default risk demands, can run here (emulated, if there
    is no hardware virtualisation), 3 when not.
    """
    from belljar.cli.policy import host_facts
    from belljar.store.home import belljar_home

    home = belljar_home()
    facts = host_facts(home, prove=not no_prove, again=prove_again, doubt=True)
    found = [*host_checks(facts), *store_checks(home), *switch_checks(home, prove=not no_prove)]
    ready = all(check.state != "no" for check in found)
    if as_json:
        checks = [asdict(check) for check in found]
        tiers = tiers_as_json(facts)
        print_json({"ready": ready, "tiers": tiers, "checks": checks, "facts": facts.to_json()})
    else:
        _show(found, verdict(found, emulated=facts.kvm.state.value != "proven"))
    return 0 if ready else HostError.exit_code


def switch_checks(home: Path, *, prove: bool) -> Iterator[Check]:
    """Whether there is a hold, and whether the kill switch works."""
    from belljar.isolation.hold import RELEASE_HINT, read_hold

    if (held := read_hold(home)) is not None:
        yield Check("held", "no", str(held), RELEASE_HINT)
    if not prove:
        return
    from anyio import run

    from belljar.isolation.self_test import test_switch

    found = run(test_switch, home)
    if found.ok:
        yield Check("kill switch", "ok", f"halted a jail of its own in {found.duration_ms:.0f} ms")
    elif found.is_made:
        detail = f"could not halt a jail of its own: {found.reason}"
        hint = "report it, with what `belljar doctor --json` prints"
        yield Check("kill switch", "no", detail, hint)
    else:
        detail = f"not tested, since no jail could be made: {found.reason}"
        yield Check("kill switch", "note", detail, "see what the tiers lack")


def host_checks(facts: HostFacts) -> Iterator[Check]:
    """The facts as checks, the tiers first."""
    yield from _tiers(facts)
    user = "root" if facts.is_root else f"user {facts.uid}"
    system = f"{facts.distro_id} {facts.distro_version}, {facts.arch}"
    yield Check("host", "ok", f"{system}, kernel {facts.kernel_release}, as {user}")
    yield Check("processors", "ok", f"{facts.cpus} × {facts.cpu_model}")
    rest = f"of {_mib(facts.memory_total_mib)} free"
    hint = "free some, or run fewer cells"
    yield _amount("memory", facts.memory_available_mib, _LOW_MEMORY_MIB, rest, hint)
    rest, hint = f"free for {facts.home}", "free some, or put BELLJAR_HOME elsewhere"
    yield _amount("disk", facts.disk_free_mib, _LOW_DISK_MIB, rest, hint)
    yield from _virtualisation(facts)
    yield _cores(facts)
    yield from _tools(facts)


def _tiers(facts: HostFacts) -> Iterator[Check]:
    """What each tier and a policy's `network` would run on here, or all obstacles.

    Only the microVM's absence is a `no`: the others replace nothing stronger.
    """
    from belljar.plan import network_obstacles, tier_obstacles
    from belljar.plan.explain import obstacle_text
    from belljar.policy import Tier

    for tier in Tier:
        found = tier_obstacles(tier, facts)
        state: State = "no" if tier is Tier.MICROVM else "note"
        for obstacle in found:
            yield Check(f"tier {tier}", state, *obstacle_text(obstacle))
        runtime = facts.runtime(tier.value)
        if found:
            continue
        if runtime is None:
            how = "can run, emulated; the first cell will prove it"
            if facts.kvm.state.value == "proven":
                how = "works: a guest booted under KVM"
            yield Check(f"tier {tier}", "ok", how)
            continue
        name = f"{runtime.name} {runtime.version}, {runtime.path}"
        if runtime.state.value == "proven":
            port = f", but none with a network port: {runtime.no_port}" if runtime.no_port else ""
            yield Check(f"tier {tier}", "ok", f"works: {name} ran a container{port}")
        else:
            yield Check(f"tier {tier}", "note", f"{name}: {runtime.reason}", runtime.hint)
    lacking = network_obstacles(facts)
    for obstacle in lacking:
        yield Check("ranges", "note", *obstacle_text(obstacle))
    if not lacking:
        nft = facts.tool("nft")
        needed = f"nft {nft.version if nft else ''}, network namespaces, the libraries of the extra"
        yield Check("ranges", "ok", f"can be made: {needed} `network`")


def tiers_as_json(facts: HostFacts) -> dict[str, dict[str, object]]:
    """Each tier's state, proof and obstacles."""
    from belljar.plan import tier_obstacles
    from belljar.plan.explain import obstacle_text
    from belljar.policy import Tier

    shown: dict[str, dict[str, object]] = {}
    for tier in Tier:
        found, runtime = tier_obstacles(tier, facts), facts.runtime(tier.value)
        proof = facts.kvm.state.value if runtime is None else runtime.state.value
        texts = [(obstacle.code.value, *obstacle_text(obstacle)) for obstacle in found]
        obstacles = [{"code": code, "what": what, "hint": hint} for code, what, hint in texts]
        shown[tier.value] = {"works": not found, "proof": proof, "obstacles": obstacles}
    return shown


def _amount(what: str, has_mib: int, low_mib: int, rest: str, hint: str) -> Check:
    is_low = has_mib < low_mib
    state: State = "note" if is_low else "ok"
    return Check(what, state, f"{_mib(has_mib)} {rest}", hint if is_low else "")


def _mib(amount_mib: int) -> str:
    return format_size(amount_mib << 20)


def _virtualisation(facts: HostFacts) -> Iterator[Check]:
    from belljar.host import KvmState
    from belljar.plan.explain import KVM_HINTS

    kvm = facts.kvm
    if kvm.state is KvmState.PROVEN:
        yield Check("KVM", "ok", f"proven: a guest booted under it ({kvm.proved_for})")
    else:
        emulated = "Cells are emulated, and risk critical is refused"
        detail = f"{kvm.state.value}: {kvm.reason}. {emulated}"
        yield Check("KVM", "note", detail, KVM_HINTS.get(kvm.state, ""))
    userns = facts.userns
    detail = userns.reason or f"at most {userns.max_user_namespaces}"
    yield Check("user namespaces", "ok" if userns.available else "no", detail, userns.hint)
    ids = facts.ids
    own = (
        "a range for each cell" if facts.is_root else "subordinate ids, shared by this user's cells"
    )
    yield Check("ids", "ok" if ids.available else "note", ids.reason or own, ids.hint)
    yield _open_files()
    group = facts.cgroup
    detail = f"{group.version.value}; usable: {', '.join(group.controllers) or 'none'}"
    if group.reason:
        hint = (
            "run as root, or in a scope with delegated controllers; until then only microVMs "
            "run, bounded by rlimits and the VM's shape"
        )
        yield Check("control groups", "note", f"{detail} ({group.reason})", hint)
    else:
        yield Check("control groups", "ok", detail)


def _open_files() -> Check:
    """The soft limit doesn't count: commands raise it."""
    from belljar.descriptors import limit_at_start

    limit = limit_at_start()
    detail = f"soft limit {limit.soft:,}, raised to the hard limit {limit.hard:,} by every command"
    if limit.hard >= _LOW_OPEN_FILES:
        return Check("open files", "ok", detail)
    raising = "raise the hard limit (`ulimit -Hn` as root, LimitNOFILE= in a systemd unit)"
    return Check("open files", "note", detail, f"{raising}, or run few cells at once")


def _cores(facts: HostFacts) -> Check:
    # Where cores go in the lowest tier: those of the others go no worse places.
    from belljar.plan.explain import obstacle_text
    from belljar.plan.obstacles import cores_warning
    from belljar.policy import Tier

    warning = cores_warning(Tier.CONTAINER, facts.cores)
    if warning is None:
        return Check("core dumps", "ok", "none is made of a cell: its limit forbids the file")
    return Check("core dumps", "note", *obstacle_text(warning))


def _tools(facts: HostFacts) -> Iterator[Check]:
    for tool in facts.tools:
        needed = f" (at least {tool.needed_min})" if tool.needed_min else ""
        found = f"{tool.version or 'version unknown'}{needed}, {tool.path}"
        detail = found if tool.path else f"missing{needed}"
        state: State = "note"
        if tool.ok:
            state = "ok"
        elif tool.needed and tool.tier == "microvm":
            state = "no"
        yield Check(tool.name, state, f"{detail}: {tool.use}", tool.hint)


def store_checks(home: Path) -> list[Check]:
    """Whether the store is writable and holds the kernel and default image."""
    from belljar.errors import BelljarError
    from belljar.image.kernel import current_kernel
    from belljar.image.store import Store

    found = [_writable(home)]
    try:
        found.append(Check("guest kernel", "ok", current_kernel(home).version))
    except BelljarError as exc:
        found.append(Check("guest kernel", "no", exc.what, exc.hint))
    try:
        image = Store(home).find("default")
        detail = f"sha256:{image.digest[:12]}, {_mib(image.size_bytes >> 20)}"
        found.append(Check("default image", "ok", detail))
    except BelljarError as exc:
        found.append(Check("default image", "note", exc.what, "run `belljar setup`"))
    return found


def _writable(home: Path) -> Check:
    """The store, or the nearest directory above it."""
    place = next(path for path in (home, *home.parents) if path.exists())
    if os.access(place, os.W_OK | os.X_OK):
        return Check("store", "ok", str(home))
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        detail = f"{home}: the file system of {place} is read-only"
        hint = "set BELLJAR_HOME to a directory on a file system that can be written"
        return Check("store", "no", detail, hint)
    hint = "set BELLJAR_HOME to a directory of your own, or work as the user who owns this one"
    return Check("store", "no", f"{home}: this user can't write {place}", hint)


def verdict(found: Sequence[Check], *, emulated: bool) -> str:
    """The tiers in which cells can run, and the others."""
    from belljar.policy import Tier

    states: dict[str, set[str]] = {}
    for check in found:
        states.setdefault(check.what, set()).add(check.state)
    unready = {tier for tier in Tier if states.get(f"tier {tier}") != {"ok"}}
    if "no" in states.get("guest kernel", ()):
        unready.add(Tier.MICROVM)
    if "no" in states.get("store", ()) or unready == set(Tier):
        return "No cell can run here yet: see `no` and `note` above."
    ready, lacking = (
        ", ".join(sorted(tier.value for tier in tiers)) for tiers in (set(Tier) - unready, unready)
    )
    has_machines = Tier.MICROVM not in unready
    jail = " (emulated: the jail, not the VM, is the boundary)" if emulated and has_machines else ""
    can = f"Cells can run here in {ready}{jail}"
    demanded = "" if has_machines else ", which the default risk demands"
    return f"{can}; not in {lacking}{demanded}: see above." if unready else f"{can}."


def _show(found: list[Check], conclusion: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "note": "yellow", "no": "bold red"}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for column in ("what", "state", "detail"):
        table.add_column(column, overflow="fold", no_wrap=column != "detail")
    for check in found:
        detail = Text(printable(check.detail))
        if check.hint:
            detail.append(f"\nhint: {printable(check.hint)}", style="bold")
        state = Text(check.state, style=colours[check.state])
        table.add_row(Text(printable(check.what)), state, detail)
    console = Console(highlight=False)
    console.print(table)
    console.print(Text(f"\n{conclusion}", style="bold"))
