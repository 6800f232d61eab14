"""KVM and OCI runtimes: believed only after a trial.

On some hosts /dev/kvm opens and makes a VM, but never runs a stock kernel.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from belljar.dataclass import json_of, replace
from belljar.errors import BelljarError
from belljar.host import tools
from belljar.host.model import RuntimeFact, Trial, TrialState

# Each tier's runtime, and the least version.
RUNTIMES: Final = {"container": ("runc", "1.1"), "gvisor": ("runsc", "20231009")}
# Saves the cells of a run repeated failing trials.
REFUTED_FOR_S: Final = 30.0
# runc's first line is `runc version 1.1.5`.
_DOTTED: Final = re.compile(r"version +(\d{1,8}(?:\.\d{1,8})+)", re.ASCII)
# runsc's versions are days (release-20231009.0), Debian's packages write `0.0~20231009`.
_DAY: Final = re.compile(r"\b(20\d{6})(?:\.\d{1,4})?\b")


# Boots a guest, in seconds. Raises `BelljarError`: it can't try.
ProveKvm: TypeAlias = Callable[[], Trial]
# Runs a container, in seconds. Raises `BelljarError`: it can't try.
ProveRuntime: TypeAlias = Callable[[RuntimeFact], Trial]


def kvm_fact(
    cache_file: Path,
    key: str,
    prove: ProveKvm | None,
    *,
    doubt: bool = False,
    device: Path = Path("/dev/kvm"),
) -> Trial:
    """Call `prove` if it is unknown, or failed with `doubt`."""
    if not os.access(device, os.R_OK | os.W_OK):
        reason = f"{device} does not exist: this machine is offered no hardware virtualisation"
        if device.exists():
            reason = f"this user may not open {device}; an administrator adds it to the group kvm"
        return Trial(state=TrialState.ABSENT, reason=reason)
    found = _tried(cache_file, key, prove, doubt=doubt, refuted_for_s=math.inf)
    if found.state is not TrialState.UNPROVEN:
        return found
    if found.reason:
        return replace(found, reason=f"no guest could be tried: {found.reason}")
    return replace(found, reason=f"{device} is there, but no guest has booted under it yet")


def runtime_facts(
    cache_file: Path, *, kernel_release: str, prove: ProveRuntime | None = None, doubt: bool = False
) -> tuple[RuntimeFact, ...]:
    """`doubt`: one that failed is tried again, however recently that was."""
    found = []
    for tier, (name, needed_min) in RUNTIMES.items():
        fact = _look(tier, name, needed_min, cache_file)
        if fact.state is not TrialState.UNUSABLE:
            # Another build of Belljar's own programs may fail where an older one ran.
            ours = f"uid {os.geteuid()}, belljar's {tools.own_programs('agent', 'jail')}"
            key = f"{fact.tier}, {tools.file_identity(fact.path)}, kernel {kernel_release}, {ours}"
            tried = _tried(
                cache_file,
                key,
                None if prove is None else partial(prove, fact),
                doubt=doubt,
                refuted_for_s=REFUTED_FOR_S,
            )
            reason, hint = tried.reason, tried.hint
            if tried.state is TrialState.UNPROVEN:
                reason = f"no container has been run with it here yet: {reason}".removesuffix(": ")
                hint = hint or "run `belljar doctor`, which runs one"
            fact = replace(fact, state=tried.state, reason=reason, hint=hint)
        found.append(fact)
    return tuple(found)


def parse_version(kind: str, text: str) -> str:
    """Return "" for none (runsc's is a date)."""
    day = _DAY.search(text.replace("~", " ").replace("-", " "))
    match = day if kind == "runsc" else _DOTTED.search(text)
    return "" if match is None else match[1]


def _look(tier: str, name: str, needed_min: str, cache_file: Path) -> RuntimeFact:
    path = tools.find_program(name)
    fact = RuntimeFact(
        tier=tier,
        name=name,
        kind=name,
        path=str(Path(path).absolute()) if path else "",
        needed_min=needed_min,
        hint=f"run `belljar setup`, or install {name} {needed_min} or newer",
    )
    if path is None:
        return replace(fact, reason=f"{name} is missing, or no program that this user can run")
    # Cached: asking takes longer than starting a container.
    version = tools.cached_version(path, "--version", cache_file, read=partial(parse_version, name))
    fact = replace(fact, version=version)
    if not tools.at_least(version, needed_min):
        reason = f"{name} {version or 'of no version'} is too old: {needed_min} or newer is needed"
        return replace(fact, reason=reason)
    return replace(fact, state=TrialState.UNPROVEN, hint="")


def _tried(
    cache_file: Path,
    key: str,
    prove: Callable[[], Trial] | None,
    *,
    doubt: bool,
    refuted_for_s: float,
) -> Trial:
    entry: Any = tools.read_json(cache_file).get(key)
    with suppress(TypeError, KeyError, ValueError):  # an entry that is damaged, or missing
        state = TrialState(entry["state"])
        # From 0 on: after the clock was set back no result is recent.
        is_recent = 0 <= time.time() - float(entry["at_s"]) < refuted_for_s
        is_believed = state is TrialState.PROVEN or prove is None or (is_recent and not doubt)
        is_outcome = state in {TrialState.PROVEN, TrialState.REFUTED}
        if is_believed and is_outcome:
            return Trial(state=state, reason=str(entry["reason"]), hint=str(entry["hint"]))
    if prove is None:
        return Trial(state=TrialState.UNPROVEN)
    try:
        trial = prove()
    except BelljarError as exc:
        # Not remembered: that nothing could be tried says nothing.
        return Trial(state=TrialState.UNPROVEN, reason=exc.what, hint=exc.hint)
    entry = {**json_of(trial), "at_s": int(time.time())}
    tools.write_json(cache_file, {**tools.read_json(cache_file), key: entry})
    return trial
