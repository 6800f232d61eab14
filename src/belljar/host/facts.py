"""Gathers the facts; tool versions and proofs are remembered in the store's `facts/`."""

from __future__ import annotations

import os
import platform
import resource
import sys
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from belljar.host import cgroups, tools
from belljar.host.cgroups import text_of
from belljar.host.model import CoreFact, CoreState, HostFacts, UsernsFact
from belljar.package import program_path
from belljar.process import PROC
from belljar.store.home import belljar_home

_MIB: Final = 1 << 20
_USUAL_NAMESPACES: Final = 15_000
_UNKNOWN_HINT: Final = "run it where seccomp and security modules allow namespaces, or as root"
# Linux's value, where /proc doesn't say it.
_USUAL_OPEN_FILES: Final = 1 << 20
# Import names of the extras `network` and `stand-ins`.
NETWORK_MODULES: Final = (
    *("h11", "uvicorn", "wsproto"),
    *("asyncssh", "dulwich", "jinja2", "packaging"),
)
# Only Ubuntu's kernels have it.
APPARMOR_SWITCH: Final = "kernel.apparmor_restrict_unprivileged_userns"


def gather_facts(
    home: Path | None = None,
    *,
    prove_kvm: tools.ProveKvm | None = None,
    prove_runtime: tools.ProveRuntime | None = None,
    doubt: bool = False,
) -> HostFacts:
    """`doubt`: remembered failures are ignored."""
    cache, proc = (home or belljar_home()) / "facts", PROC
    arch, is_root = platform.machine(), os.geteuid() == 0
    found_tools = tools.tool_facts(tools.tools_for(arch), cache / "tools.json")
    cpus = [line.partition(":") for line in text_of(proc / "cpuinfo").splitlines()]
    models = (" ".join(value.split()) for name, _, value in cpus if name.strip() == "model name")
    cpu_model, kernel_release = next(models, arch), platform.release()
    vmm = next(tool for tool in found_tools if tool.needed)
    key = f"kernel {kernel_release}, QEMU {vmm.version}, {cpu_model}"
    found = cgroups.parse_hierarchies(text_of(proc / "self/mounts"), text_of(proc / "self/cgroup"))
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = cgroups.own_memory_limit_bytes(found)
    has_net = (proc / "self/ns/net").exists()
    # Root could raise it, but only with a capability that its container may lack
    open_files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if open_files_max == resource.RLIM_INFINITY:
        open_files_max = _number(proc / "sys/fs/nr_open", _USUAL_OPEN_FILES)
    return HostFacts(
        arch=arch,
        kernel_release=kernel_release,
        is_root=is_root,
        uid=os.geteuid(),
        cpu_model=cpu_model,
        cpus=len(os.sched_getaffinity(0)),
        memory_total_mib=min(total, total if limit is None else limit) // _MIB,
        kvm=tools.kvm_fact(cache / "kvm.json", key, prove_kvm if vmm.ok else None, doubt=doubt),
        userns=_userns_fact(is_root=is_root),
        cgroup=cgroups.cgroup_fact(found, is_root=is_root),
        tools=found_tools,
        runtimes=tools.runtime_facts(
            cache / "runtimes.json", kernel_release=kernel_release, prove=prove_runtime, doubt=doubt
        ),
        ids=tools.ids_fact(is_root=is_root),
        open_files_max=open_files_max,
        cores=core_fact(),
        network_namespaces_max=_number(proc / "sys/user/max_net_namespaces", -1) if has_net else 0,
        modules_missing=tuple(name for name in NETWORK_MODULES if find_spec(name) is None),
        routes=parse_routes(text_of(proc / "net/route")),
    )


def parse_routes(text: str) -> tuple[str, ...]:
    """Return networks of /proc/net/route, sorted, without defaults."""
    found = set()
    for line in text.splitlines()[1:]:
        words = line.split("\t")
        with suppress(ValueError, OverflowError, IndexError):
            address, mask = (int(words[at], 16).to_bytes(4, sys.byteorder) for at in (1, 7))
            shown = f"{IPv4Address(address)}/{IPv4Address(mask)}"
            found.add(IPv4Network(shown, strict=False))
    return tuple(str(network) for network in sorted(found) if network.prefixlen)


def core_fact(pattern_file: Path = PROC / "sys/kernel/core_pattern") -> CoreFact:
    """An unreadable pattern counts as a program."""
    can_limit = resource.getrlimit(resource.RLIMIT_CORE)[1] != 0
    try:
        pattern = pattern_file.read_text(errors="replace").strip()
    except OSError as exc:
        unknown = f"for all that is known: core_pattern can't be read: {exc.strerror}"
        return CoreFact(state=CoreState.PROGRAM, pattern=unknown, can_limit=can_limit)
    state = {"|": CoreState.PROGRAM, "@": CoreState.SERVER}.get(pattern[:1], CoreState.FILE)
    return CoreFact(state=state, pattern=pattern, can_limit=can_limit)


def _number(file: Path, default: int) -> int:
    text = text_of(file).strip()
    return int(text) if text.isdigit() else default


def _userns_fact(*, is_root: bool) -> UsernsFact:
    if _number(PROC / "sys/user/max_user_namespaces", -1) == 0:
        reason = "user.max_user_namespaces is 0"
        hint = f"as root: sysctl -w user.max_user_namespaces={_USUAL_NAMESPACES}"
    elif not (reason := try_namespaces()):
        return UsernsFact(available=True)
    else:
        hint, switch = _UNKNOWN_HINT, "sys/kernel/apparmor_restrict_unprivileged_userns"
        if not is_root and text_of(PROC / switch).strip() == "1":
            reason = f"{APPARMOR_SWITCH} is 1 (Ubuntu's default since 24.04)"
            hint = f"allow {program_path('jail')} by the AppArmor profile in docs/tiers.md"
    return UsernsFact(available=False, reason=reason, hint=hint)


def try_namespaces() -> str:
    """Return "" if they can be made."""
    status, output = tools.run_briefly(str(program_path("jail")), "--try-namespaces")
    if status is None:
        return f"could not be tried: {output}"
    return "" if status == 0 else f"making one was tried: {output.strip()[:200] or status}"
