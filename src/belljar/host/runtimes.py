"""OCI runtimes: which ones there are, and whether they work.

Believed only when one has run a container here: there are versions that end without a word.

Who can run one (the container tiers) hands the proof in; its result is remembered in the store, by
the program's file, this kernel and our own programs in it. That one works is remembered for good.
That one does not is believed for a short while only: what stood in its way may have been fixed
without a trace in any key.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from belljar.dataclass import dataclass
from belljar.errors import BelljarError
from belljar.host.model import CgroupVersion, RuntimeFact, RuntimeState
from belljar.host.tools import (
    SEARCH_PATH,
    ask_text,
    at_least,
    file_identity,
    own_programs,
    read_json,
    write_json,
)

RUNTIME_VARIABLE: Final = "BELLJAR_OCI_RUNTIME"
"""A runtime's name or path for the container tier instead of runc: a matter of the host, not of a
policy.
"""
RUNC_MIN: Final = "1.1"
RUNSC_MIN: Final = "20231009"
_LEAST: Final = {"runc": RUNC_MIN, "runsc": RUNSC_MIN, "crun": "1.4"}
REFUTED_FOR_S: Final = 30.0
"""So long the cells of a run need not each try a runtime that has just failed."""
_DOTTED: Final = re.compile(r"version:? +(?:release-|v)?(\d{1,8}(?:\.\d{1,8})+)", re.IGNORECASE)
_DAY: Final = re.compile(r"\b(20\d{6})(?:\.\d{1,4})?\b")
_PROBED: Final = {RuntimeState.PROVEN.value, RuntimeState.REFUTED.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeTrial:
    """What running a container with it showed; `reason` and `hint` when it didn't work, `no_port`
    when only one with a network port didn't.
    """

    works: bool
    reason: str = ""
    hint: str = ""
    no_port: str = ""


ProveRuntime: TypeAlias = Callable[[RuntimeFact], RuntimeTrial]
"""Runs one container with the runtime.

May take seconds. Raises a `BelljarError` when it can't even try.
"""


def runtime_facts(
    cache_file: Path,
    *,
    environ: Mapping[str, str],
    kernel_release: str,
    groups: CgroupVersion,
    prove: ProveRuntime | None = None,
    again: bool = False,
    doubt: bool = False,
) -> tuple[RuntimeFact, ...]:
    """The runtime of the container tier, then gVisor's.

    Each is proven when that is not remembered and `prove` is given, or with `again`.

    `doubt`: one that failed is tried again, however short ago that was.
    """
    wanted = (("container", environ.get(RUNTIME_VARIABLE) or "runc"), ("gvisor", "runsc"))
    found = (_look(tier, name, groups, cache_file) for tier, name in wanted)
    memory = _Memory(file=cache_file, kernel_release=kernel_release, again=again, doubt=doubt)
    return tuple(_proven(fact, memory, prove) for fact in found)


def parse_version(kind: str, text: str) -> str:
    """The version in what a runtime says of itself, "" when there is none: runsc's is its day
    (`0.0~20240729.0`, `release-20240729.0`).
    """
    match = (
        _DAY.search(text.replace("~", " ").replace("-", " "))
        if kind == "runsc"
        else _DOTTED.search(text)
    )
    return "" if match is None else match[1]


def kind_of(name: str) -> str:
    """Whose command line a runtime of that name has."""
    return "runsc" if Path(name).name.startswith("runsc") else "runc"


def _look(tier: str, name: str, groups: CgroupVersion, cache_file: Path) -> RuntimeFact:
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SEARCH_PATH}")
    family = next(
        (known for known in ("runsc", "crun") if Path(name).name.startswith(known)), "runc"
    )
    fact = RuntimeFact(
        tier=tier,
        name=name,
        kind=kind_of(name),
        path=str(Path(path).absolute()) if path else "",
        needed_min=_LEAST[family],
    )
    if tier == "container" and fact.kind == "runsc":
        hint = f"ask for the gvisor tier, and unset {RUNTIME_VARIABLE}"
        return replace(
            fact, reason=f"{name} is the gvisor tier's runtime, not the container tier's", hint=hint
        )
    if path is None:
        return replace(fact, reason=_absence(name), hint=_install(tier, name))
    fact = replace(fact, version=_version(path, family, cache_file))
    reason = _unfit(fact, family, groups)
    return replace(
        fact,
        state=RuntimeState.UNUSABLE if reason else RuntimeState.UNPROVEN,
        reason=reason,
        hint=_hint(fact, family),
    )


def _absence(name: str) -> str:
    return (
        f"{name} is no program that this user can run"
        if Path(name).is_absolute() and os.path.lexists(name)
        else f"{name} is missing"
    )


def _version(path: str, family: str, cache_file: Path) -> str:
    """Asked once: a runtime takes longer to say its version than a container to start."""
    key = f"version of {file_identity(path)}"
    known = read_json(cache_file).get(key)
    if isinstance(known, str) and known:
        return known
    version = parse_version(family, ask_text(path, ("--version",)))
    if version:
        write_json(cache_file, {**read_json(cache_file), key: version})
    return version


def _unfit(fact: RuntimeFact, family: str, groups: CgroupVersion) -> str:
    if not fact.version:
        return (
            f"{fact.path} doesn't say its version, as every OCI runtime does (`{family} version "
            f"{fact.needed_min}`)"
        )
    if not at_least(fact.version, fact.needed_min):
        return f"{fact.name} {fact.version} is too old: {fact.needed_min} or newer is needed"
    if family == "crun" and groups is CgroupVersion.HYBRID and not at_least(fact.version, "1.9"):
        return (
            f"crun {fact.version} ends with status 1 and without a word where control groups of "
            f"version 1 and 2 are mixed, as here"
        )
    return ""


def _hint(fact: RuntimeFact, family: str) -> str:
    if family == "crun":
        return f"use runc (unset {RUNTIME_VARIABLE}), or crun 1.9 or newer"
    return _install(fact.tier, fact.name)


def _install(tier: str, name: str) -> str:
    if tier == "gvisor":
        return (
            f"run `belljar setup`, or install runsc {RUNSC_MIN} or newer (Debian 12: from "
            f"bookworm-backports)"
        )
    if name != "runc":
        return f"give {RUNTIME_VARIABLE} an OCI runtime's name or path, or unset it to use runc"
    return f"run `belljar setup`, or install runc {RUNC_MIN} or newer"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """What came of earlier trials, in a file of the store.

    `again`: nothing counts. `doubt`: only what worked does.
    """

    file: Path
    kernel_release: str
    again: bool
    doubt: bool

    def key(self, fact: RuntimeFact) -> str:
        """What a trial's result holds for."""
        mine = (
            f"kernel {self.kernel_release}, uid {os.geteuid()}, belljar's "
            f"{own_programs('agent', 'jail')}"
        )
        return f"{fact.tier}, {file_identity(fact.path)}, {mine}"

    def recall(self, fact: RuntimeFact, *, can_try: bool) -> RuntimeFact | None:
        """What is remembered and still counts. Who can't try takes what there is."""
        key = self.key(fact)
        entry = read_json(self.file).get(_entry(key))
        if (
            not isinstance(entry, dict)
            or entry.get("for") != key
            or entry.get("state") not in _PROBED
        ):
            return None
        state = RuntimeState(entry["state"])
        if can_try and (
            self.again or (state is RuntimeState.REFUTED and (self.doubt or not _is_recent(entry)))
        ):
            return None
        reason, hint = str(entry.get("reason", "")), str(entry.get("hint", ""))
        no_port = str(entry.get("no_port", ""))
        return replace(fact, state=state, reason=reason, hint=hint, no_port=no_port, proved_for=key)

    def keep(self, fact: RuntimeFact) -> None:
        """For the next time."""
        entry = {
            "state": fact.state.value,
            "reason": fact.reason,
            "hint": fact.hint,
            "no_port": fact.no_port,
            "for": fact.proved_for,
            "at_s": int(time.time()),
        }
        write_json(self.file, {**read_json(self.file), _entry(fact.proved_for): entry})


def _is_recent(entry: Mapping[str, object]) -> bool:
    at_s = entry.get("at_s")
    return isinstance(at_s, int) and 0 <= time.time() - at_s < REFUTED_FOR_S


def _entry(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _proven(fact: RuntimeFact, memory: _Memory, prove: ProveRuntime | None) -> RuntimeFact:
    if fact.state is RuntimeState.UNUSABLE:
        return fact
    if (known := memory.recall(fact, can_try=prove is not None)) is not None:
        return known
    if prove is None:
        hint = "run `belljar doctor`, which runs one"
        return replace(fact, reason="no container has been run with it here yet", hint=hint)
    try:
        trial = prove(fact)
    except BelljarError as exc:
        return replace(fact, reason=f"no container could be tried: {exc.what}", hint=exc.hint)
    state = RuntimeState.PROVEN if trial.works else RuntimeState.REFUTED
    tried = replace(
        fact,
        state=state,
        reason=trial.reason,
        hint=trial.hint,
        no_port=trial.no_port,
        proved_for=memory.key(fact),
    )
    memory.keep(tried)
    return tried
