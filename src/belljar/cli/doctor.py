"""`belljar doctor`: what this host can do, why not, and the mend."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from belljar.units import printable

if TYPE_CHECKING:
    from belljar.host import HostFacts

HOST_CANNOT_CODE = 3
_LOW_DISK_MIB = 4096
_LOW_MEMORY_MIB = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the table. `no` keeps cells from running; `note` takes something away, which the detail says."""

    what: str
    state: Literal["ok", "note", "no"]
    detail: str
    mend: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: ready, checks and facts.")
@click.option("--no-prove", is_flag=True, help="Don't boot a guest to prove KVM.")
@click.option("--prove-again", is_flag=True, help="Boot a guest to prove KVM even if the result is remembered.")
def doctor(as_json: bool, no_prove: bool, prove_again: bool) -> int:  # noqa: FBT001 - click passes options by name
    """Say what this host can do, and why not. Installs and changes nothing.

    KVM counts only when a guest really boots under it; the result is remembered per kernel, QEMU version and processor. Exit code 0 when microVM
    cells can run here (emulated, if there is no hardware virtualisation), 3 when not.
    """
    from belljar.cli._facts import host_facts
    from belljar.host import belljar_home

    home = belljar_home()
    facts = host_facts(home, prove=not no_prove, again=prove_again)
    found = [*host_checks(facts), *store_checks(home)]
    ready = all(check.state != "no" for check in found)
    if as_json:
        click.echo(
            json.dumps(
                {"ready": ready, "checks": [asdict(check) for check in found], "facts": facts.to_json()}, indent=2
            )
        )
    else:
        _show(found, ready=ready, emulated=facts.kvm.state.value != "proven")
    return 0 if ready else HOST_CANNOT_CODE


def host_checks(facts: HostFacts) -> list[Check]:
    """The facts as checks, what keeps cells from running first."""
    from belljar.plan import microvm_obstacles

    blocking = [
        Check(what="microVM tier", state="no", detail=obstacle.what, mend=obstacle.mend)
        for obstacle in microvm_obstacles(facts)
    ]
    return blocking + list(_system(facts)) + list(_virtualisation(facts)) + list(_tools(facts))


def _system(facts: HostFacts) -> Iterator[Check]:
    who = "root" if facts.is_root else f"user {facts.uid}"
    yield Check(
        what="host",
        state="ok",
        detail=f"{facts.distro_id} {facts.distro_version}, {facts.arch}, kernel {facts.kernel_release}, as {who}",
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
        "disk", facts.disk_free_mib, _LOW_DISK_MIB, f"free for {facts.home}", "free some, or put BELLJAR_HOME elsewhere"
    )


def _amount(what: str, has_mib: int, low_mib: int, rest: str, mend: str) -> Check:
    low = has_mib < low_mib
    return Check(what=what, state="note" if low else "ok", detail=f"{_mib(has_mib)} {rest}", mend=mend if low else "")


def _mib(amount_mib: int) -> str:
    from belljar.units import format_size

    return format_size(amount_mib << 20)


def _virtualisation(facts: HostFacts) -> Iterator[Check]:
    from belljar.plan import hardware_obstacle

    obstacle = hardware_obstacle(facts)
    proven = obstacle is None
    yield Check(
        what="KVM",
        state="ok" if proven else "note",
        detail=f"proven: a guest booted under it ({facts.kvm.proved_for})"
        if proven
        else f"{facts.kvm.state.value}: {facts.kvm.reason}. Cells are emulated, and risk critical is refused",
        mend=obstacle.mend.partition("; or lower")[0] if obstacle else "",
    )
    userns = facts.userns
    yield Check(
        what="user namespaces",
        state="ok" if userns.available else "no",
        detail=userns.reason or f"at most {userns.max_user_namespaces}",
    )
    group = facts.cgroup
    yield Check(
        what="control groups",
        state="note" if group.reason else "ok",
        detail=f"{group.version.value}; usable: {', '.join(group.controllers) or 'none'}"
        + (f" ({group.reason})" if group.reason else ""),
        mend="run as root, or in a scope with delegated controllers; until then rlimits and the VM's shape bound a cell"
        if group.reason
        else "",
    )


def _tools(facts: HostFacts) -> Iterator[Check]:
    for tool in facts.tools:
        least = f" (at least {tool.needed_min})" if tool.needed_min else ""
        detail = f"{tool.version or 'version unknown'}{least}, {tool.path}" if tool.path else f"missing{least}"
        state: Literal["ok", "note", "no"] = "ok" if tool.ok else "no" if tool.needed else "note"
        yield Check(what=tool.name, state=state, detail=f"{detail}: {tool.use}", mend=tool.mend)


def store_checks(home: Path) -> list[Check]:
    """Whether this user can write the store, and whether it holds what a cell is made from: the guest kernel and the default image."""
    from belljar.errors import BelljarError
    from belljar.image.kernel import current_kernel
    from belljar.image.store import Store

    found = [_writable(home)]
    try:
        found.append(Check(what="guest kernel", state="ok", detail=current_kernel(home).version))
    except BelljarError as exc:
        found.append(Check(what="guest kernel", state="no", detail=exc.what, mend=exc.mend))
    try:
        image = Store(home).find("default")
        found.append(
            Check(
                what="default image", state="ok", detail=f"sha256:{image.digest[:12]}, {_mib(image.size_bytes >> 20)}"
            )
        )
    except BelljarError as exc:
        found.append(Check(what="default image", state="note", detail=exc.what, mend="run `belljar setup`"))
    return found


def _writable(home: Path) -> Check:
    """Looks only: the store, or the nearest directory above it that there is."""
    place = next(path for path in (home, *home.parents) if path.exists())
    if os.access(place, os.W_OK | os.X_OK):
        return Check(what="store", state="ok", detail=str(home))
    return Check(
        what="store",
        state="no",
        detail=f"{home}: this user can't write {place}",
        mend="set BELLJAR_HOME to a directory of your own, or work as the user who owns this one",
    )


def _show(found: list[Check], *, ready: bool, emulated: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "note": "yellow", "no": "bold red"}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for column in ("what", "state", "detail"):
        table.add_column(column, overflow="fold", no_wrap=column != "detail")
    for check in found:
        detail = Text(printable(check.detail))
        if check.mend:
            detail.append(f"\n→ {printable(check.mend)}", style="bold")
        table.add_row(Text(printable(check.what)), Text(check.state, style=colours[check.state]), detail)
    console = Console(highlight=False)
    console.print(table)
    how = "emulated: the jail, not the VM, is the boundary" if emulated else "with hardware virtualisation"
    verdict = (
        f"\nmicroVM cells can run here ({how})." if ready else "\nmicroVM cells can't run here yet: see `no` above."
    )
    console.print(Text(verdict, style="bold"))
