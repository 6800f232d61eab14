"""Gathering the facts. Reads; what it remembers (tool versions, the proof of KVM) it keeps in the store's `facts/`."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Final

from belljar.host import cgroups
from belljar.host.home import belljar_home
from belljar.host.kvm import ProveKvm, kvm_fact, proof_key
from belljar.host.model import HostFacts, UsernsFact
from belljar.host.tools import SEARCH_PATH, tool_facts, tools_for

_MIB: Final = 1 << 20
_TRIAL_TIMEOUT_S: Final = 5.0
APPARMOR_SWITCH: Final = "kernel.apparmor_restrict_unprivileged_userns"


def gather_facts(
    home: Path | None = None,
    *,
    prove_kvm: ProveKvm | None = None,
    prove_again: bool = False,
    proc: Path = Path("/proc"),
) -> HostFacts:
    """What this machine can do, now. Blocks for tens of milliseconds; seconds when a tool's version isn't known yet or `prove_kvm` boots a guest.

    Args:
        home: the store, default `belljar_home()`; it need not exist.
        prove_kvm: boots a guest under KVM; called only when that is unknown, or with `prove_again`.
        proc: where /proc is, for tests.
    """
    home = home or belljar_home()
    arch, is_root = platform.machine(), os.geteuid() == 0
    tools = tool_facts(tools_for(arch), home / "facts" / "tools.json")
    cpu_model, kernel_release = _cpu_model(proc), platform.release()
    vmm = next(tool for tool in tools if tool.needed)
    key = proof_key(kernel_release=kernel_release, vmm_version=vmm.version, cpu_model=cpu_model)
    found = cgroups.parse_hierarchies(_text(proc / "self/mounts"), _text(proc / "self/cgroup"))
    distro_id, distro_version = parse_os_release(_text(Path("/etc/os-release")))
    total_mib, available_mib = _memory_mib(proc, found)
    return HostFacts(
        arch=arch,
        distro_id=distro_id,
        distro_version=distro_version,
        kernel_release=kernel_release,
        is_root=is_root,
        uid=os.geteuid(),
        cpu_model=cpu_model,
        cpus=len(os.sched_getaffinity(0)),
        memory_total_mib=total_mib,
        memory_available_mib=available_mib,
        disk_free_mib=_disk_free_mib(home),
        home=str(home),
        kvm=kvm_fact(home / "facts" / "kvm.json", key, prove_kvm if vmm.ok else None, again=prove_again),
        userns=_userns(proc, is_root=is_root),
        cgroup=cgroups.cgroup_fact(found, is_root=is_root),
        tools=tools,
    )


def parse_os_release(text: str) -> tuple[str, str]:
    """`ID` and `VERSION_ID` of os-release(5), "" for what it doesn't say."""
    pairs = (line.partition("=")[::2] for line in text.splitlines() if not line.startswith("#"))
    values = {name.strip(): value.strip().strip("\"'") for name, value in pairs}
    return values.get("ID", ""), values.get("VERSION_ID", "")


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo's amounts in bytes, by name. Lines that can't be read are left out."""
    amounts: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            amounts[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return amounts


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _cpu_model(proc: Path) -> str:
    lines = (line.partition(":") for line in _text(proc / "cpuinfo").splitlines())
    return next(
        (" ".join(value.split()) for name, _, value in lines if name.strip() == "model name"), platform.machine()
    )


def _memory_mib(proc: Path, found: cgroups.Hierarchies) -> tuple[int, int]:
    amounts = parse_meminfo(_text(proc / "meminfo"))
    total, available = amounts.get("MemTotal", 0), amounts.get("MemAvailable", amounts.get("MemFree", 0))
    limit = cgroups.own_memory_limit_bytes(found)
    bounds = (total, available) if limit is None else (min(total, limit), min(available, limit))
    return bounds[0] // _MIB, bounds[1] // _MIB


def _disk_free_mib(home: Path) -> int:
    place = next((path for path in (home, *home.parents) if path.exists()), Path("/"))
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize // _MIB


def _userns(proc: Path, *, is_root: bool) -> UsernsFact:
    most = _text(proc / "sys/user/max_user_namespaces").strip()
    most_count = int(most) if most.isdigit() else -1
    failure = "" if most_count != 0 else "user.max_user_namespaces is 0; an administrator can raise it with sysctl"
    failure = failure or _userns_trial()
    if failure and not is_root:
        failure = _switched_off(proc) or failure
    return UsernsFact(available=not failure, reason=failure, max_user_namespaces=most_count)


def _switched_off(proc: Path) -> str:
    if _text(proc / "sys/kernel/apparmor_restrict_unprivileged_userns").strip() == "1":
        return f"{APPARMOR_SWITCH} is 1 (Ubuntu's default): an administrator can allow it for Belljar with an AppArmor profile, or set it to 0"
    if _text(proc / "sys/kernel/unprivileged_userns_clone").strip() == "0":
        return "kernel.unprivileged_userns_clone is 0; an administrator can set it to 1 with sysctl"
    return ""


def _userns_trial() -> str:
    """Why a user namespace with root's rights inside can't be made, "" when it can. Tried: seccomp and security modules have the last word."""
    try:
        done = subprocess.run(
            [shutil.which("unshare", path=SEARCH_PATH) or "unshare", "--user", "--map-root-user", "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRIAL_TIMEOUT_S,
            check=False,
            env={"PATH": SEARCH_PATH, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError) as exc:
        return f"could not be tried: {exc}"
    said = done.stderr.decode("utf-8", "replace").strip()[:200]
    return "" if done.returncode == 0 else f"making a user namespace failed: {said or done.returncode}"
