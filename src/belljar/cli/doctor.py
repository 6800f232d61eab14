"""`belljar doctor`: what this host can do, why not, and the hint."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from belljar.units import printable

if TYPE_CHECKING:
    from belljar.host import HostFacts
    from belljar.policy import Tier

HOST_CANNOT_CODE = 3
_LOW_DISK_MIB = 4096
_LOW_MEMORY_MIB = 2048
_LOW_OPEN_FILES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the table.

    `no` keeps cells from running; `note` takes something away, which the detail says.
    """

    what: str
    state: Literal["ok", "note", "no"]
    detail: str
    hint: str = ""


@click.command()
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: ready, tiers, checks and facts."
)
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
def doctor(as_json: bool, no_prove: bool, prove_again: bool) -> int:  # noqa: FBT001
    """Say what this host can do in each tier, and why not. Installs and changes nothing.

    KVM counts only when a guest really boots under it, an OCI runtime only when it ran a container;
    the results are remembered per kernel and program, but a runtime that failed is tried each time.
    Exit code 0 when microVM cells, which the default risk demands, can run here (emulated, if there
    is no hardware virtualisation), 3 when not.
    """
    from belljar.cli._facts import host_facts
    from belljar.store.home import belljar_home

    home = belljar_home()
    facts = host_facts(home, prove=not no_prove, again=prove_again, doubt=True)
    found = [*host_checks(facts), *store_checks(home), *switch_checks(home, prove=not no_prove)]
    ready = all(check.state != "no" for check in found)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "ready": ready,
                    "tiers": tiers_as_json(facts),
                    "checks": [asdict(check) for check in found],
                    "facts": facts.to_json(),
                },
                indent=2,
            )
        )
    else:
        _show(found, verdict(found, emulated=facts.kvm.state.value != "proven"))
    return 0 if ready else HOST_CANNOT_CODE


def switch_checks(home: Path, *, prove: bool) -> Iterator[Check]:
    """Whether cells may be made at all, and whether the kill switch can halt one."""
    from belljar.isolation.hold import RELEASE_HINT, read_hold

    if (held := read_hold(home)) is not None:
        yield Check(what="held", state="no", detail=str(held), hint=RELEASE_HINT)
    if not prove:
        return
    from anyio import run

    from belljar.isolation.self_test import test_switch

    found = run(test_switch, home)
    if found.ok:
        yield Check(
            what="kill switch",
            state="ok",
            detail=f"halted a jail of its own in {found.duration_ms:.0f} ms",
        )
    elif found.is_made:
        hint = "report it, with what `belljar doctor --json` prints"
        yield Check(
            what="kill switch",
            state="no",
            detail=f"could not halt a jail of its own: {found.reason}",
            hint=hint,
        )
    else:
        detail = f"not tested, since no jail could be made: {found.reason}"
        yield Check(what="kill switch", state="note", detail=detail, hint="see what the tiers lack")


def host_checks(facts: HostFacts) -> list[Check]:
    """The facts as checks, the tiers first."""
    return [
        *_tiers(facts),
        *_ranges(facts),
        *_system(facts),
        *_virtualisation(facts),
        _cores(facts),
        *_tools(facts),
    ]


def _tiers(facts: HostFacts) -> Iterator[Check]:
    """Every tier: what it would run on here, or all that stands in its way.

    Only the microVM's absence is a `no`: the others replace nothing stronger.
    """
    from belljar.plan import tier_obstacles
    from belljar.policy import Tier

    for tier in Tier:
        found = tier_obstacles(tier, facts)
        for obstacle in found:
            yield Check(
                what=f"tier {tier}",
                state="no" if tier is Tier.MICROVM else "note",
                detail=obstacle.what,
                hint=obstacle.hint,
            )
        if not found:
            yield _works(tier.value, facts)


def _ranges(facts: HostFacts) -> Iterator[Check]:
    """Whether a policy with a `network` can be carried out; cells without one need none of it."""
    from belljar.plan import network_obstacles

    found = network_obstacles(facts)
    for obstacle in found:
        yield Check(what="ranges", state="note", detail=obstacle.what, hint=obstacle.hint)
    if not found:
        nft = facts.tool("nft")
        detail = (
            f"can be made: nft {nft.version if nft else ''}, network namespaces, the libraries of "
            f"the extra `network`"
        )
        yield Check(what="ranges", state="ok", detail=detail)


def _works(tier: str, facts: HostFacts) -> Check:
    runtime = facts.runtime(tier)
    if runtime is None:
        proven = facts.kvm.state.value == "proven"
        how = (
            "works: a guest booted under KVM"
            if proven
            else "can run, emulated; the first cell will prove it"
        )
        return Check(what=f"tier {tier}", state="ok", detail=how)
    name = f"{runtime.name} {runtime.version}, {runtime.path}"
    if runtime.state.value == "proven":
        port = f", but none with a network port: {runtime.no_port}" if runtime.no_port else ""
        return Check(what=f"tier {tier}", state="ok", detail=f"works: {name} ran a container{port}")
    return Check(
        what=f"tier {tier}", state="note", detail=f"{name}: {runtime.reason}", hint=runtime.hint
    )


def tiers_as_json(facts: HostFacts) -> dict[str, dict[str, object]]:
    """For each tier, whether it can run here, whether that is proven, and all that stands in its
    way.
    """
    from belljar.plan import tier_obstacles
    from belljar.policy import Tier

    shown: dict[str, dict[str, object]] = {}
    for tier in Tier:
        found, runtime = tier_obstacles(tier, facts), facts.runtime(tier.value)
        proof = facts.kvm.state.value if runtime is None else runtime.state.value
        shown[tier.value] = {
            "works": not found,
            "proof": proof,
            "obstacles": [{"what": obstacle.what, "hint": obstacle.hint} for obstacle in found],
        }
    return shown


def _system(facts: HostFacts) -> Iterator[Check]:
    who = "root" if facts.is_root else f"user {facts.uid}"
    yield Check(
        what="host",
        state="ok",
        detail=f"{facts.distro_id} {facts.distro_version}, {facts.arch}, kernel "
        f"{facts.kernel_release}, as {who}",
    )
    yield Check(what="processors", state="ok", detail=f"{facts.cpus} × {facts.cpu_model}")
    yield _amount(
        "memory",
        facts.memory_available_mib,
        _LOW_MEMORY_MIB,
        f"of {_mib(facts.memory_total_mib)} free",
        "free some, or run fewer cells",
    )
    yield _amount(
        "disk",
        facts.disk_free_mib,
        _LOW_DISK_MIB,
        f"free for {facts.home}",
        "free some, or put BELLJAR_HOME elsewhere",
    )


def _amount(what: str, has_mib: int, low_mib: int, rest: str, hint: str) -> Check:
    low = has_mib < low_mib
    return Check(
        what=what,
        state="note" if low else "ok",
        detail=f"{_mib(has_mib)} {rest}",
        hint=hint if low else "",
    )


def _mib(amount_mib: int) -> str:
    from belljar.units import format_size

    return format_size(amount_mib << 20)


def _virtualisation(facts: HostFacts) -> Iterator[Check]:
    from belljar.host import KvmState
    from belljar.plan.obstacles import KVM_HINTS

    proven = facts.kvm.state is KvmState.PROVEN
    yield Check(
        what="KVM",
        state="ok" if proven else "note",
        detail=f"proven: a guest booted under it ({facts.kvm.proved_for})"
        if proven
        else f"{facts.kvm.state.value}: {facts.kvm.reason}. Cells are emulated, and risk "
        f"critical is refused",
        hint=KVM_HINTS.get(facts.kvm.state, ""),
    )
    userns = facts.userns
    yield Check(
        what="user namespaces",
        state="ok" if userns.available else "no",
        detail=userns.reason or f"at most {userns.max_user_namespaces}",
        hint=userns.hint,
    )
    ids = facts.ids
    yield Check(
        what="ids",
        state="ok" if ids.available else "note",
        detail=ids.reason
        or (
            "a range for each cell"
            if facts.is_root
            else "subordinate ids, shared by this user's cells"
        ),
        hint=ids.hint,
    )
    yield _open_files()
    group = facts.cgroup
    yield Check(
        what="control groups",
        state="note" if group.reason else "ok",
        detail=f"{group.version.value}; usable: {', '.join(group.controllers) or 'none'}"
        + (f" ({group.reason})" if group.reason else ""),
        hint="run as root, or in a scope with delegated controllers; until then only microVMs "
        "run, bounded by rlimits and the VM's shape"
        if group.reason
        else "",
    )


def _open_files() -> Check:
    """Both limits.

    The soft one never stands in the way: every command raises it to the hard one.
    """
    from belljar.descriptors import limit_at_start

    limit = limit_at_start()
    detail = f"soft limit {limit.soft:,}, raised to the hard limit {limit.hard:,} by every command"
    if limit.hard >= _LOW_OPEN_FILES:
        return Check(what="open files", state="ok", detail=detail)
    hint = (
        "raise the hard limit (`ulimit -Hn` as root, LimitNOFILE= in a systemd unit), or run few "
        "cells at once"
    )
    return Check(what="open files", state="note", detail=detail, hint=hint)


def _cores(facts: HostFacts) -> Check:
    """Where crashes in the least of the tiers go; the others' are no worse."""
    from belljar.plan.obstacles import cores_warning
    from belljar.policy import Tier

    warning = cores_warning(Tier.CONTAINER, facts.cores)
    if warning is None:
        return Check(
            what="core dumps",
            state="ok",
            detail="none is made of a cell: its limit forbids the file",
        )
    return Check(what="core dumps", state="note", detail=warning.what, hint=warning.hint)


def _tools(facts: HostFacts) -> Iterator[Check]:
    for tool in facts.tools:
        least = f" (at least {tool.needed_min})" if tool.needed_min else ""
        detail = (
            f"{tool.version or 'version unknown'}{least}, {tool.path}"
            if tool.path
            else f"missing{least}"
        )
        state: Literal["ok", "note", "no"] = (
            "ok" if tool.ok else "no" if tool.needed and tool.tier == "microvm" else "note"
        )
        yield Check(what=tool.name, state=state, detail=f"{detail}: {tool.use}", hint=tool.hint)


def store_checks(home: Path) -> list[Check]:
    """Whether this user can write the store, and whether it holds what a cell is made from: the
    guest kernel and the default image.
    """
    from belljar.errors import BelljarError
    from belljar.image.kernel import current_kernel
    from belljar.image.store import Store

    found = [_writable(home)]
    try:
        found.append(Check(what="guest kernel", state="ok", detail=current_kernel(home).version))
    except BelljarError as exc:
        found.append(Check(what="guest kernel", state="no", detail=exc.what, hint=exc.hint))
    try:
        image = Store(home).find("default")
        found.append(
            Check(
                what="default image",
                state="ok",
                detail=f"sha256:{image.digest[:12]}, {_mib(image.size_bytes >> 20)}",
            )
        )
    except BelljarError as exc:
        found.append(
            Check(what="default image", state="note", detail=exc.what, hint="run `belljar setup`")
        )
    return found


def _writable(home: Path) -> Check:
    """Looks only: the store, or the nearest directory above it that there is."""
    place = next(path for path in (home, *home.parents) if path.exists())
    if os.access(place, os.W_OK | os.X_OK):
        return Check(what="store", state="ok", detail=str(home))
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        hint = "set BELLJAR_HOME to a directory on a file system that can be written"
        return Check(
            what="store",
            state="no",
            detail=f"{home}: the file system of {place} is read-only",
            hint=hint,
        )
    return Check(
        what="store",
        state="no",
        detail=f"{home}: this user can't write {place}",
        hint="set BELLJAR_HOME to a directory of your own, or work as the user who owns this one",
    )


def verdict(found: Sequence[Check], *, emulated: bool) -> str:
    """One sentence for all of it: the tiers in which cells can run here, and those in which they
    can't.
    """
    from belljar.policy import Tier

    states: dict[str, set[str]] = {}
    for check in found:
        states.setdefault(check.what, set()).add(check.state)
    unready = {tier for tier in Tier if states.get(f"tier {tier}") != {"ok"}}
    if "no" in states.get("guest kernel", ()):
        unready.add(Tier.MICROVM)
    if "no" in states.get("store", ()) or unready == set(Tier):
        return "No cell can run here yet: see `no` and `note` above."
    jail = (
        " (emulated: the jail, not the VM, is the boundary)"
        if emulated and Tier.MICROVM not in unready
        else ""
    )
    can = f"Cells can run here in {_names(set(Tier) - unready)}{jail}"
    demanded = ", which the default risk demands" if Tier.MICROVM in unready else ""
    return f"{can}; not in {_names(unready)}{demanded}: see above." if unready else f"{can}."


def _names(tiers: Collection[Tier]) -> str:
    return ", ".join(sorted(tier.value for tier in tiers))


def _show(found: list[Check], said: str) -> None:
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
        table.add_row(
            Text(printable(check.what)), Text(check.state, style=colours[check.state]), detail
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(Text(f"\n{said}", style="bold"))
