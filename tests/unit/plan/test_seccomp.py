"""The system call profile: data, and what becomes of it."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import itertools
import tomllib
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from belljar.plan.oci import load_rules, prefixes_without, seccomp_profile

DANGEROUS = """
    bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register kexec_load
    kexec_file_load init_module finit_module delete_module open_by_handle_at pivot_root
    move_mount fsopen fsmount fsconfig fspick open_tree mount_setattr add_key request_key keyctl
    reboot swapon swapoff syslog acct settimeofday clock_settime clock_adjtime adjtimex iopl
    ioperm modify_ldt move_pages mbind fanotify_init quotactl lookup_dcookie setdomainname
    uselib vhangup nfsservctl clone3 io_setup io_submit mincore cachestat process_madvise
    pidfd_getfd kcmp
"""

PROFILE = seccomp_profile("x86_64", gvisor=False)


def holds(item: dict[str, Any], argument: int) -> bool:
    """libseccomp's comparisons that the profile uses; both are of 64 bits."""
    if item["op"] in {"SCMP_CMP_NE", "SCMP_CMP_EQ"}:
        return bool((argument == item["value"]) == (item["op"] == "SCMP_CMP_EQ"))
    assert item["op"] == "SCMP_CMP_MASKED_EQ"
    return bool((argument & item["value"]) == item["valueTwo"])


def matching(profile: dict[str, Any], call: str, *args: int) -> list[dict[str, Any]]:
    return [
        entry
        for entry in profile["syscalls"]
        if call in entry["names"]
        and all(holds(item, args[item["index"]]) for item in entry.get("args", ()))
    ]


def answer(profile: dict[str, Any], call: str, *args: int) -> str:
    """What the kernel does by this profile: the call, as if it had done it, or an error."""
    found = matching(profile, call, *args)
    assert len(found) <= 1
    if found and found[0]["action"] == "SCMP_ACT_ALLOW":
        return "allowed"
    error = found[0]["errnoRet"] if found else profile["defaultErrnoRet"]
    return errno.errorcode.get(error, "pretended")


def allowed() -> set[str]:
    rules = load_rules()
    return {call for group in (*rules["allow"], *rules["agent"]) for call in group.calls}


@pytest.mark.promise("2.2", "3.2")
def test_what_was_a_way_out_before_is_refused() -> None:
    """Whatever its arguments, and so is what nobody thought of."""
    for call in DANGEROUS.split():
        assert call not in allowed()
        assert answer(PROFILE, call, 0, 0, 0) in {"EPERM", "ENOSYS"}, call
    assert answer(PROFILE, "a_call_of_tomorrow") == "EPERM"
    for call in ("io_setup", "io_submit", "io_uring_setup", "mincore", "cachestat", "clone3"):
        assert answer(PROFILE, call, 0, 0, 0) == "ENOSYS", call


LOW = 0x1_0000_0000  # beyond it the kernel doesn't look: it takes 32 bits
NEW_USER, NEW_NET = 0x1000_0000, 0x4000_0000
DONTNEED, NOWAIT, DONTCACHE = 4, 0x08, 0x80
POINTER, CORE, FILES = 0x7FFF_1234_0000, 4, 7
HALF_ZERO = POINTER << 8 & 0xFFFF_FFFF_0000_0000
Calls = list[tuple[int, ...]]
ANSWERS: list[tuple[str, str, Calls]] = [
    ("clone", "allowed", [(0x3D0F00,)]),  # a thread
    ("clone", "EPERM", [(flag | 17,) for flag in (NEW_USER, NEW_NET, 0x20000)]),
    ("ioctl", "allowed", [(0, 0x5401)]),
    ("ioctl", "EPERM", [(0, number) for number in (0x5412, LOW | 0x5412, 0x541C, 0x5423)]),
    ("personality", "allowed", [(0xFFFFFFFF,)]),
    ("personality", "EPERM", [(0x0400_0000,)]),  # READ_IMPLIES_EXEC's neighbours
    # The last is netlink's: the list of interfaces
    ("socket", "allowed", [(1, 1, 0), (2, 0x80801, 6), (10, 2, 0), (16, 3, 0)]),
    # Netfilter, SCTP, DCCP, MPTCP, UDP-Lite, packets, kernel crypto, vsock
    ("socket", "EPERM", [(16, 3, 12), (2, 1, 132), (2, 6, 33), (2, 1, 262), (10, 2, 136)]),
    ("socket", "EPERM", [(17, 3, 0), (38, 5, 0), (40, 1, 0)]),
    # The agent's two namespaces, of processes and of mounts: no other, no two at once, no user's
    *(
        (call, told, [(*place, flags) for flags in of])
        for call, place in (("unshare", ()), ("setns", (0,)))
        for told, of in (
            ("allowed", (0x20000000, 0x00020000)),
            ("EPERM", (0, NEW_USER, 0x30000000, 0x20020000, NEW_NET, 0x02000000, 0x04000000)),
        )
    ),
    # The page cache is neither asked nor changed: advice that would drop pages is answered as if it
    # were taken, reads that ask get the answer of a file system without them
    ("fadvise64", "allowed", [(3, 0, 0, advice) for advice in (0, 1, 2, 3, 5)]),
    ("fadvise64", "pretended", [(3, 0, 0, DONTNEED), (3, 0, 0, LOW | DONTNEED)]),
    ("madvise", "pretended", [(0, 4096, advice) for advice in (20, 21, 25)]),
    ("madvise", "allowed", [(0, 4096, advice) for advice in (0, 3, 4, 8, 14, 18, 19, 22, 23, 24)]),
    ("madvise", "allowed", [(0, 4096, advice) for advice in (102, 103)]),
    ("preadv2", "allowed", [(3, 0, 1, 0, 0, 0), (3, 0, 1, 0, 0, 1)]),  # RWF_HIPRI
    (
        *("preadv2", "ENOTSUP"),
        [(3, 0, 1, 0, 0, flags) for flags in (NOWAIT, DONTCACHE, NOWAIT | DONTCACHE | 1)],
    ),
    # The limit of core dumps is not the workload's to change, by either call, for itself or
    # another; everything else of limits is done. Asked for with the old value, that were made up
    ("setrlimit", "pretended", [(CORE, POINTER), (LOW | CORE, POINTER)]),
    ("setrlimit", "allowed", [(FILES, POINTER)]),
    ("prlimit64", "pretended", [(pid, CORE, POINTER, 0) for pid in (0, 123)]),
    ("prlimit64", "pretended", [(0, LOW | CORE, POINTER, 0), (0, CORE, HALF_ZERO, 0)]),
    ("prlimit64", "allowed", [(0, CORE, 0, POINTER), (0, FILES, POINTER, POINTER)]),
    ("prlimit64", "EPERM", [(0, CORE, POINTER, POINTER)]),
    # No filter of a socket, no keys of TCP; the same numbers mean others for other protocols
    ("setsockopt", "ENOPROTOOPT", [(3, 1, 26), (3, LOW | 1, LOW | 51)]),
    ("setsockopt", "ENOPROTOOPT", [(3, 6, option) for option in (14, 32, 38)]),
    ("setsockopt", "allowed", [(3, 1, 8), (3, 1, 14), (3, 6, 26), (3, 41, 26), (3, 0, 14)]),
    # The host's pool of huge pages, and its disks
    ("mmap", "ENOMEM", [(0, 4096, 3, 0x40022), (0, 4096, 3, 0x54040022)]),
    ("mmap", "allowed", [(0, 4096, 3, 0x22), (0, 4096, 1, 2)]),
    ("memfd_create", "EINVAL", [(POINTER, 4), (POINTER, 0x54000005)]),
    ("memfd_create", "allowed", [(POINTER, 0), (POINTER, 3), (POINTER, 8)]),
    ("sync", "pretended", [()]),
    ("syncfs", "pretended", [(3,)]),
]


@pytest.mark.promise("2.2", "3.2")
@pytest.mark.parametrize(("call", "told", "calls"), ANSWERS)
def test_arguments_decide_where_a_call_has_a_harmless_half(
    call: str, told: str, calls: Calls
) -> None:
    """Namespaces, other people's terminals, odd protocols, the page cache, core dumps."""
    assert {args: answer(PROFILE, call, *args) for args in calls} == dict.fromkeys(calls, told)


DOCKER = tomllib.loads((Path(__file__).parent / "docker_default.toml").read_text())
CONDITIONAL_IN_DOCKER_TOO = {"clone", "personality", "socket"}


@pytest.mark.promise("2.2")
def test_every_difference_from_dockers_default_has_its_reason() -> None:
    """Calls that one profile alone allows, or ours under conditions, are listed with a reason."""
    assert {"unshare", "setns"} <= {call for group in load_rules()["agent"] for call in group.calls}
    docker, ours = frozenset(DOCKER["allows"]), allowed()
    conditional = {call for group in load_rules()["allow"] for call in group.calls if group.any_of}
    assert docker - ours == set(DOCKER["refused"])
    assert ours - docker == set(DOCKER["allowed"])
    assert (conditional & docker) - CONDITIONAL_IN_DOCKER_TOO == set(DOCKER["narrowed"])
    assert all(
        reason.endswith(".")
        for part in ("refused", "allowed", "narrowed")
        for reason in DOCKER[part].values()
    )


def test_gvisor_answers_for_its_own() -> None:
    """It answers EPERM to all refused calls, which ends programs that set a limit."""
    profile = seccomp_profile("x86_64", gvisor=True)
    for call in ("setrlimit", "prlimit64"):
        (rule,) = (rule for rule in profile["syscalls"] if call in rule["names"])
        assert rule["action"] == "SCMP_ACT_ALLOW"
        assert "args" not in rule
    assert answer(profile, "clone3", 0) == "allowed"
    assert answer(profile, "unshare", 0) == "EPERM"


@pytest.mark.parametrize(
    ("arch", "named"), [("x86_64", "SCMP_ARCH_X86_64"), ("aarch64", "SCMP_ARCH_AARCH64")]
)
def test_only_the_machines_own_calls_are_known(arch: str, named: str) -> None:
    """A foreign architecture's, 32-bit or x32, kill the caller."""
    rfc8785.dumps(seccomp_profile(arch, gvisor=False))
    assert seccomp_profile(arch, gvisor=False)["architectures"] == [named]
    with pytest.raises(ValueError, match="riscv64"):
        seccomp_profile("riscv64", gvisor=False)


@given(
    values=st.frozensets(st.integers(0, 0xFFFF_FFFF), min_size=1, max_size=4),
    near=st.integers(-2, 2),
)
def test_all_but_a_few_values_is_exactly_that(values: frozenset[int], near: int) -> None:
    """Every value is matched once, but for those; their neighbours too."""
    prefixes = list(prefixes_without(values, 0, 32))
    for value in {(item + near) & 0xFFFF_FFFF for item in values} | {0, 0xFFFF_FFFF}:
        assert sum((value & mask) == prefix for prefix, mask in prefixes) == (
            0 if value in values else 1
        )
    assert sum(1 << (32 - mask.bit_count()) for _, mask in prefixes) == (1 << 32) - len(values)


def test_every_call_named_is_one() -> None:
    """By libseccomp's own table: a misspelt name would be passed over in silence."""
    name = ctypes.util.find_library("seccomp")
    if name is None:
        pytest.skip("libseccomp is not installed")
    resolve = ctypes.CDLL(name).seccomp_syscall_resolve_name
    rules = load_rules()
    named = {call for group in itertools.chain(*rules.values()) for call in group.calls}
    unknown = {call for call in named if resolve(call.encode()) == -1}
    # Younger than libseccomp 2.5
    younger = """
        cachestat fchmodat2 futex_requeue futex_wait futex_waitv futex_wake getxattrat listmount
        listxattrat lsm_get_self_attr lsm_list_modules lsm_set_self_attr map_shadow_stack
        memfd_secret mseal open_tree_attr process_mrelease quotactl_fd removexattrat
        set_mempolicy_home_node setxattrat statmount
    """
    assert unknown <= {*younger.split()}
