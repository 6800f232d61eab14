"""Hardware virtualisation: believed only when a guest has booted under it on this kernel, this VMM
and this processor.

There are hosts where /dev/kvm opens, makes a VM, and never runs a stock kernel. Who can boot a
guest (the microVM tier) hands the proof in; its result is remembered in the store, so that it costs
its time once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from belljar.dataclass import dataclass
from belljar.errors import BelljarError
from belljar.host.model import KvmFact, KvmState
from belljar.host.tools import read_json, write_json

DEVICE: Final = Path("/dev/kvm")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvmProof:
    """What booting a guest under KVM showed. `reason`: one sentence, why it didn't."""

    boots: bool
    reason: str = ""


ProveKvm: TypeAlias = Callable[[], KvmProof]
"""Boots a guest under KVM and says whether it came up.

May take seconds. Raises a `BelljarError` when it can't even try (no guest kernel, no VMM).
"""


def proof_key(*, kernel_release: str, vmm_version: str, cpu_model: str) -> str:
    """What a proof holds for: another kernel, VMM or processor needs another."""
    return (
        f"kernel {kernel_release}, QEMU {vmm_version or 'none'}, {cpu_model or 'unknown processor'}"
    )


def kvm_fact(
    cache_file: Path,
    key: str,
    prove: ProveKvm | None,
    *,
    again: bool = False,
    device: Path = DEVICE,
) -> KvmFact:
    """What is known.

    `prove` is called when nothing is remembered for `key`, or with `again`; without it an unknown
    stays `UNPROVEN`.
    """
    if (missing := _unusable(device)) is not None:
        return missing
    remembered = None if again and prove is not None else _remembered(cache_file, key)
    if remembered is not None:
        return remembered
    if prove is None:
        return KvmFact(
            state=KvmState.UNPROVEN,
            reason=f"{device} is there, but no guest has booted under it yet",
        )
    try:
        proof = prove()
    except BelljarError as exc:
        return KvmFact(state=KvmState.UNPROVEN, reason=f"no guest could be tried: {exc.what}")
    fact = KvmFact(
        state=KvmState.PROVEN if proof.boots else KvmState.REFUTED,
        reason="" if proof.boots else proof.reason,
        proved_for=key,
    )
    entry = {"state": fact.state.value, "reason": fact.reason, "for": fact.proved_for}
    write_json(cache_file, {**read_json(cache_file), _entry(fact.proved_for): entry})
    return fact


def _unusable(device: Path) -> KvmFact | None:
    if not device.exists():
        return KvmFact(
            state=KvmState.ABSENT,
            reason=f"{device} does not exist: no hardware virtualisation is offered to this "
            f"machine",
        )
    if not os.access(device, os.R_OK | os.W_OK):
        return KvmFact(
            state=KvmState.ABSENT,
            reason=f"{device} may not be opened by this user; an administrator can add it to the "
            f"group kvm",
        )
    return None


def _entry(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _remembered(cache_file: Path, key: str) -> KvmFact | None:
    entry = read_json(cache_file).get(_entry(key))
    if (
        not isinstance(entry, dict)
        or entry.get("for") != key
        or entry.get("state") not in {KvmState.PROVEN, KvmState.REFUTED}
    ):
        return None
    return KvmFact(
        state=KvmState(entry["state"]), reason=str(entry.get("reason", "")), proved_for=key
    )
