"""KVM and OCI runtimes: believed only after a trial.

On some hosts /dev/kvm opens and makes a VM, but never runs a stock kernel; some runtimes exit
silently. Success is remembered for good, a runtime's failure for `REFUTED_FOR_S`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from belljar.dataclass import dataclass, replace
from belljar.errors import BelljarError
from belljar.host.model import KvmFact, KvmState, RuntimeFact, RuntimeState
from belljar.host.tools import (
    SEARCH_PATH,
    ask_text,
    at_least,
    file_identity,
    own_programs,
    read_json,
    write_json,
)

# Name or path of the container tier's runtime.
RUNTIME_VARIABLE: Final = "BELLJAR_OCI_RUNTIME"
RUNC_MIN: Final = "1.1"
RUNSC_MIN: Final = "20231009"
# Saves the cells of a run repeated failing trials.
REFUTED_FOR_S: Final = 30.0
# runc's first line is `runc version 1.1.5`; other runtimes write a colon or a `v`.
_DOTTED: Final = re.compile(r"version:? +(?:release-|v)?(\d{1,8}(?:\.\d{1,8})+)", re.IGNORECASE)
# runsc's versions are days (release-20231009.0), Debian's packages write `0.0~20231009`.
_DAY: Final = re.compile(r"\b(20\d{6})(?:\.\d{1,4})?\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTrial:
    """Whether a guest booted, or a container ran, else why not."""

    works: bool
    reason: str = ""
    hint: str = ""


# Boots a guest, in seconds. Raises `BelljarError`: it can't try.
ProveKvm: TypeAlias = Callable[[], HostTrial]
# Runs a container, in seconds. Raises `BelljarError`: it can't try.
ProveRuntime: TypeAlias = Callable[[RuntimeFact], HostTrial]


def proof_key(*, kernel_release: str, vmm_version: str, cpu_model: str) -> str:
    """Kernel, VMM and processor that a proof covers."""
    processor = cpu_model or "unknown processor"
    return f"kernel {kernel_release}, QEMU {vmm_version or 'none'}, {processor}"


def kvm_fact(
    cache_file: Path,
    key: str,
    prove: ProveKvm | None,
    *,
    doubt: bool = False,
    device: Path = Path("/dev/kvm"),
) -> KvmFact:
    """KVM's state; calls `prove` if it is unknown, or with `doubt` if it failed."""
    if not device.exists():
        reason = f"{device} does not exist: this machine is offered no hardware virtualisation"
        return KvmFact(state=KvmState.ABSENT, reason=reason)
    if not os.access(device, os.R_OK | os.W_OK):
        reason = f"this user may not open {device}; an administrator can add it to the group kvm"
        return KvmFact(state=KvmState.ABSENT, reason=reason)
    states = {KvmState.PROVEN, KvmState.REFUTED}
    entry = _recall(cache_file, key, states)
    if entry and not (doubt and prove and entry["state"] == KvmState.REFUTED):
        state, reason = KvmState(entry["state"]), str(entry.get("reason", ""))
        return KvmFact(state=state, reason=reason, proved_for=key)
    if prove is None:
        reason = f"{device} is there, but no guest has booted under it yet"
        return KvmFact(state=KvmState.UNPROVEN, reason=reason)
    try:
        proof = prove()
    except BelljarError as exc:
        # Not remembered: that nothing could be tried says nothing about KVM.
        return KvmFact(state=KvmState.UNPROVEN, reason=f"no guest could be tried: {exc.what}")
    state = KvmState.PROVEN if proof.works else KvmState.REFUTED
    reason = "" if proof.works else proof.reason
    _remember(cache_file, key, {"state": state.value, "reason": reason})
    return KvmFact(state=state, reason=reason, proved_for=key)


def runtime_facts(
    cache_file: Path,
    *,
    environ: Mapping[str, str],
    kernel_release: str,
    prove: ProveRuntime | None = None,
    doubt: bool = False,
) -> tuple[RuntimeFact, ...]:
    """The container tier's runtime, then gVisor's.

    Each is tried when no result is remembered and `prove` is given. `doubt`: one that failed is
    tried again, however recently that was.
    """
    found = []
    for tier, name in (("container", environ.get(RUNTIME_VARIABLE) or "runc"), ("gvisor", "runsc")):
        fact = _look(tier, name, cache_file)
        if fact.state is not RuntimeState.UNUSABLE:
            fact = _tried(fact, cache_file, kernel_release, prove, doubt=doubt)
        found.append(fact)
    return tuple(found)


def parse_version(kind: str, text: str) -> str:
    """A runtime's printed version, else ""; runsc prints a date."""
    day = _DAY.search(text.replace("~", " ").replace("-", " "))
    match = day if kind == "runsc" else _DOTTED.search(text)
    return "" if match is None else match[1]


def kind_of(name: str) -> str:
    """Which command line that runtime takes."""
    return "runsc" if Path(name).name.startswith("runsc") else "runc"


def _look(tier: str, name: str, cache_file: Path) -> RuntimeFact:
    # An ordinary user's PATH often lacks /usr/sbin, where Debian has runc.
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SEARCH_PATH}")
    kind = kind_of(name)
    fact = RuntimeFact(
        tier=tier,
        name=name,
        kind=kind,
        path=str(Path(path).absolute()) if path else "",
        needed_min=RUNSC_MIN if kind == "runsc" else RUNC_MIN,
    )
    if tier == "container" and fact.kind == "runsc":
        reason = f"{name} is the gvisor tier's runtime, not the container tier's"
        hint = f"ask for the gvisor tier, and unset {RUNTIME_VARIABLE}"
        return replace(fact, reason=reason, hint=hint)
    if tier == "gvisor":
        enough = f"runsc {RUNSC_MIN} or newer (Debian 12: from bookworm-backports)"
        hint = f"run `belljar setup`, or install {enough}"
    elif name != "runc":
        hint = f"give {RUNTIME_VARIABLE} an OCI runtime's name or path, or unset it to use runc"
    else:
        hint = f"run `belljar setup`, or install runc {RUNC_MIN} or newer"
    if path is None:
        is_there = Path(name).is_absolute() and os.path.lexists(name)
        why = "is no program that this user can run" if is_there else "is missing"
        return replace(fact, reason=f"{name} {why}", hint=hint)
    fact = replace(fact, version=_version(path, fact.kind, cache_file), hint=hint)
    reason = _unfit(fact)
    state = RuntimeState.UNUSABLE if reason else RuntimeState.UNPROVEN
    return replace(fact, state=state, reason=reason)


def _version(path: str, kind: str, cache_file: Path) -> str:
    """Cached: asking takes longer than starting a container."""
    key = f"version of {file_identity(path)}"
    known = read_json(cache_file).get(key)
    if isinstance(known, str) and known:
        return known
    version = parse_version(kind, ask_text(path, ("--version",)))
    # An empty answer isn't remembered: the next look asks again.
    if version:
        write_json(cache_file, {**read_json(cache_file), key: version})
    return version


def _unfit(fact: RuntimeFact) -> str:
    if not fact.version:
        return f"{fact.path} doesn't say its version, as every OCI runtime does"
    if not at_least(fact.version, fact.needed_min):
        return f"{fact.name} {fact.version} is too old: {fact.needed_min} or newer is needed"
    return ""


def _tried(
    fact: RuntimeFact,
    cache_file: Path,
    kernel_release: str,
    prove: ProveRuntime | None,
    *,
    doubt: bool,
) -> RuntimeFact:
    # Another build of Belljar's own programs may fail where an older one ran.
    ours = f"uid {os.geteuid()}, belljar's {own_programs('agent', 'jail')}"
    key = f"{fact.tier}, {file_identity(fact.path)}, kernel {kernel_release}, {ours}"
    entry = _recall(cache_file, key, {RuntimeState.PROVEN, RuntimeState.REFUTED})
    if entry and prove is not None:
        at_s = entry.get("at_s")
        # From 0 on: after the clock was set back no result is recent.
        is_recent = isinstance(at_s, int) and 0 <= time.time() - at_s < REFUTED_FOR_S
        is_refuted = entry["state"] == RuntimeState.REFUTED
        if is_refuted and (doubt or not is_recent):
            entry = {}
    if entry:
        words = {name: str(entry.get(name, "")) for name in ("reason", "hint")}
        return replace(fact, state=RuntimeState(entry["state"]), proved_for=key, **words)
    if prove is None:
        hint = "run `belljar doctor`, which runs one"
        return replace(fact, reason="no container has been run with it here yet", hint=hint)
    try:
        trial = prove(fact)
    except BelljarError as exc:
        return replace(fact, reason=f"no container could be tried: {exc.what}", hint=exc.hint)
    state = RuntimeState.PROVEN if trial.works else RuntimeState.REFUTED
    words = {"reason": trial.reason, "hint": trial.hint}
    _remember(cache_file, key, {"state": state.value, **words, "at_s": int(time.time())})
    return replace(fact, state=state, proved_for=key, **words)


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _recall(cache_file: Path, key: str, states: set[Any]) -> dict[str, Any]:
    entry = read_json(cache_file).get(_name(key))
    if not isinstance(entry, dict) or entry.get("for") != key or entry.get("state") not in states:
        return {}
    return entry


def _remember(cache_file: Path, key: str, result: Mapping[str, object]) -> None:
    write_json(cache_file, {**read_json(cache_file), _name(key): {**result, "for": key}})
