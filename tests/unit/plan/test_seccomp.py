"""The system call profile: data, and what becomes of it."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from belljar.plan import seccomp
from belljar.plan.seccomp import load_rules, prefixes_without, seccomp_profile

ALLOWED = 0
DANGEROUS = """
    bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register kexec_load
    kexec_file_load init_module finit_module delete_module open_by_handle_at pivot_root
    move_mount fsopen fsmount fsconfig fspick open_tree mount_setattr add_key request_key keyctl
    reboot swapon swapoff syslog acct settimeofday clock_settime clock_adjtime adjtimex iopl
    ioperm modify_ldt move_pages mbind fanotify_init quotactl lookup_dcookie setdomainname
    uselib vhangup nfsservctl clone3 io_setup io_submit mincore cachestat process_madvise
    pidfd_getfd kcmp
"""
NEWER_THAN_LIBSECCOMP_2_5 = """
    cachestat fchmodat2 futex_requeue futex_wait futex_waitv futex_wake getxattrat listmount
    listxattrat lsm_get_self_attr lsm_list_modules lsm_set_self_attr map_shadow_stack
    memfd_secret mseal open_tree_attr process_mrelease quotactl_fd removexattrat
    set_mempolicy_home_node setxattrat statmount
"""


def holds(item: dict[str, Any], argument: int) -> bool:
    """libseccomp's comparisons that the profile uses; both are of 64 bits."""
    if item["op"] in {"SCMP_CMP_NE", "SCMP_CMP_EQ"}:
        return bool((argument == item["value"]) == (item["op"] == "SCMP_CMP_EQ"))
    assert item["op"] == "SCMP_CMP_MASKED_EQ"
    return bool((argument & item["value"]) == item["valueTwo"])


def matching(profile: dict[str, Any], call: str, *args: int) -> int:
    """How many rules say something of this call."""
    rules = [entry for entry in profile["syscalls"] if call in entry["names"]]
    return sum(
        all(holds(item, args[item["index"]]) for item in entry.get("args", ())) for entry in rules
    )


def answer(profile: dict[str, Any], call: str, *args: int) -> int:
    """What the kernel would do by this profile: 0 is allowed, else the error."""
    for entry in profile["syscalls"]:
        if call in entry["names"] and all(
            holds(item, args[item["index"]]) for item in entry.get("args", ())
        ):
            return 0 if entry["action"] == "SCMP_ACT_ALLOW" else int(entry["errnoRet"])
    return int(profile["defaultErrnoRet"])


@pytest.fixture(scope="module")
def profile() -> dict[str, Any]:
    """runc's, on x86_64."""
    return seccomp_profile("x86_64", gvisor=False)


def test_every_call_named_is_one() -> None:
    """By libseccomp's own table, which the runtime uses: a misspelt name would be passed over in
    silence."""
    name = ctypes.util.find_library("seccomp")
    if name is None:
        pytest.skip("libseccomp is not installed")
    resolve = ctypes.CDLL(name).seccomp_syscall_resolve_name
    rules = load_rules()
    named = {
        call
        for group in (*rules.allow, *rules.agent, *rules.pretend, *rules.refuse, *rules.gvisor)
        for call in group.calls
    }
    unknown = {call for call in named if resolve(call.encode()) == -1}
    assert unknown <= set(NEWER_THAN_LIBSECCOMP_2_5.split())


@pytest.mark.promise("2.2")
@pytest.mark.parametrize("call", DANGEROUS.split())
def test_what_was_a_way_out_before_is_refused(call: str, profile: dict[str, Any]) -> None:
    """Whatever its arguments."""
    assert call not in load_rules().allowed()
    assert answer(profile, call, 0, 0, 0) in {errno.EPERM, errno.ENOSYS}


@pytest.mark.parametrize(("call", "place"), [("unshare", 0), ("setns", 1)])
def test_namespaces_are_made_for_a_service_only(
    call: str, place: int, profile: dict[str, Any]
) -> None:
    """The agent's two, of processes and of mounts: no other, no two at once, and no user's."""
    for flags in (0x20000000, 0x00020000):
        assert answer(profile, call, *[0] * place, flags) == ALLOWED
    for flags in (0, 0x10000000, 0x30000000, 0x20020000, 0x40000000, 0x02000000, 0x04000000):
        assert answer(profile, call, *[0] * place, flags) == errno.EPERM
    assert call in {call for group in load_rules().agent for call in group.calls}


@pytest.mark.promise("2.2")
def test_what_nobody_thought_of_is_refused(profile: dict[str, Any]) -> None:
    """Deny by default."""
    assert answer(profile, "a_call_of_tomorrow") == errno.EPERM


@pytest.mark.parametrize(
    ("call", "args", "error"),
    [
        ("clone", (0x3D0F00,), ALLOWED),  # a thread
        ("clone", (0x10000000 | 17,), errno.EPERM),  # a user namespace
        ("clone", (0x40000000 | 17,), errno.EPERM),
        ("clone", (0x20000 | 17,), errno.EPERM),
        ("clone3", (0,), errno.ENOSYS),
        ("ioctl", (0, 0x5401), ALLOWED),
        ("ioctl", (0, 0x5412), errno.EPERM),
        ("ioctl", (0, 0x1_0000_5412), errno.EPERM),  # the kernel looks at 32 bits
        ("ioctl", (0, 0x541C), errno.EPERM),
        ("ioctl", (0, 0x5423), errno.EPERM),
        ("personality", (0xFFFFFFFF,), ALLOWED),
        ("personality", (0x0400_0000,), errno.EPERM),  # READ_IMPLIES_EXEC's neighbours
        ("socket", (1, 1, 0), ALLOWED),
        ("socket", (2, 0x80801, 6), ALLOWED),
        ("socket", (10, 2, 0), ALLOWED),
        ("socket", (16, 3, 0), ALLOWED),  # netlink: the list of interfaces
        ("socket", (16, 3, 12), errno.EPERM),  # netfilter
        ("socket", (2, 1, 132), errno.EPERM),  # SCTP
        ("socket", (2, 6, 33), errno.EPERM),  # DCCP
        ("socket", (2, 1, 262), errno.EPERM),  # MPTCP
        ("socket", (10, 2, 136), errno.EPERM),  # UDP-Lite
        ("socket", (17, 3, 0), errno.EPERM),  # packets
        ("socket", (38, 5, 0), errno.EPERM),  # kernel crypto
        ("socket", (40, 1, 0), errno.EPERM),  # vsock
    ],
)
def test_arguments_decide_where_a_call_has_a_harmless_half(
    call: str, args: tuple[int, ...], error: int, profile: dict[str, Any]
) -> None:
    """Namespaces, other people's terminals, odd protocols."""
    assert answer(profile, call, *args) == error


DOCKER = tomllib.loads((Path(__file__).parent / "docker_default.toml").read_text())
CONDITIONAL_IN_DOCKER_TOO = {"clone", "personality", "socket"}


@pytest.mark.promise("2.2")
def test_every_difference_from_dockers_default_has_its_reason() -> None:
    """Calls that only one of the two profiles allows, and those that ours allows under conditions,
    are listed with a reason; nothing else is listed."""
    docker, ours = frozenset(DOCKER["allows"]), load_rules().allowed()
    conditional = {call for group in load_rules().allow for call in group.calls if group.any_of}
    assert docker - ours == set(DOCKER["refused"])
    assert ours - docker == set(DOCKER["allowed"])
    assert (conditional & docker) - CONDITIONAL_IN_DOCKER_TOO == set(DOCKER["narrowed"])
    assert all(
        reason.endswith(".")
        for part in ("refused", "allowed", "narrowed")
        for reason in DOCKER[part].values()
    )


DONTNEED, NOWAIT, DONTCACHE = 4, 0x08, 0x80


@pytest.mark.promise("3.2")
@pytest.mark.parametrize(
    ("call", "args", "rule"),
    [
        *(("fadvise64", (3, 0, 0, advice), "allowed") for advice in (0, 1, 2, 3, 5)),
        ("fadvise64", (3, 0, 0, DONTNEED), "pretended"),
        (
            "fadvise64",
            (3, 0, 0, 0x1_0000_0000 | DONTNEED),
            "pretended",
        ),  # the kernel looks at 32 bits
        *(("madvise", (0, 4096, advice), "pretended") for advice in (20, 21, 25)),
        *(
            ("madvise", (0, 4096, advice), "allowed")
            for advice in (0, 3, 4, 8, 14, 18, 19, 22, 23, 24, 102, 103)
        ),
        ("preadv2", (3, 0, 1, 0, 0, 0), "allowed"),
        ("preadv2", (3, 0, 1, 0, 0, 1), "allowed"),  # RWF_HIPRI
        *(
            ("preadv2", (3, 0, 1, 0, 0, flags), "refused")
            for flags in (NOWAIT, DONTCACHE, NOWAIT | DONTCACHE | 1)
        ),
    ],
)
def test_the_page_cache_is_neither_asked_nor_changed(
    call: str, args: tuple[int, ...], rule: str, profile: dict[str, Any]
) -> None:
    """Advice that would drop pages is answered as if it were taken; reads that ask get the answer
    of a file system without them. One rule says so."""
    assert matching(profile, call, *args) == 1
    assert answer(profile, call, *args) == (errno.EOPNOTSUPP if rule == "refused" else 0)
    found = [
        entry
        for entry in profile["syscalls"]
        if call in entry["names"]
        and all(holds(item, args[item["index"]]) for item in entry.get("args", ()))
    ]
    assert (found[0]["action"] == "SCMP_ACT_ALLOW") == (rule == "allowed")


@pytest.mark.promise("3.2")
@pytest.mark.parametrize(
    "call", ["io_setup", "io_submit", "io_uring_setup", "mincore", "cachestat"]
)
def test_programs_take_another_way(call: str, profile: dict[str, Any]) -> None:
    """These don't exist, as on another kernel: libraries fall back for that answer only."""
    assert answer(profile, call, 0, 0, 0) == errno.ENOSYS


POINTER = 0x7FFF_1234_0000
CORE, FILES = 4, 7


@pytest.mark.parametrize(
    ("call", "args", "action"),
    [
        ("setrlimit", (CORE, POINTER), "pretended"),
        ("setrlimit", (0x1_0000_0000 | CORE, POINTER), "pretended"),  # the kernel looks at 32 bits
        ("setrlimit", (FILES, POINTER), "allowed"),
        ("prlimit64", (0, CORE, POINTER, 0), "pretended"),
        ("prlimit64", (123, CORE, POINTER, 0), "pretended"),
        ("prlimit64", (0, 0x1_0000_0000 | CORE, POINTER, 0), "pretended"),
        (
            "prlimit64",
            (0, CORE, POINTER << 8 & 0xFFFF_FFFF_0000_0000, 0),
            "pretended",
        ),  # a pointer whose lower half is zero
        ("prlimit64", (0, CORE, 0, POINTER), "allowed"),
        ("prlimit64", (0, CORE, POINTER, POINTER), "refused"),  # the old value would be made up
        ("prlimit64", (0, FILES, POINTER, POINTER), "allowed"),
    ],
)
def test_the_limit_of_core_dumps_is_not_the_workloads_to_change(
    call: str, args: tuple[int, ...], action: str, profile: dict[str, Any]
) -> None:
    """By either call, for itself or another, in each form that the kernel takes for that limit;
    everything else of limits is done. One rule says so, or none."""
    rules = [rule for rule in profile["syscalls"] if call in rule["names"]]
    found = [
        rule for rule in rules if all(holds(item, args[item["index"]]) for item in rule["args"])
    ]
    assert len(found) == (action != "refused")
    assert answer(profile, call, *args) == (errno.EPERM if action == "refused" else 0)
    if found:
        assert found[0]["action"] == ("SCMP_ACT_ALLOW" if action == "allowed" else "SCMP_ACT_ERRNO")


@given(
    resource=st.integers(0, 2**64 - 1),
    new=st.sampled_from((0, POINTER)),
    old=st.sampled_from((0, POINTER)),
)
def test_limits_have_one_answer_each(resource: int, new: int, old: int) -> None:
    """No two rules hold for one call: libseccomp would choose."""
    profile = seccomp_profile("x86_64", gvisor=False)
    assert matching(profile, "setrlimit", resource, new) == 1
    assert matching(profile, "prlimit64", 0, resource, new, old) <= 1


def test_the_profile_can_be_kept_on_record(profile: dict[str, Any]) -> None:
    """The ledger's form of JSON has no number beyond 2^53."""
    rfc8785.dumps(profile)


def test_gvisor_answers_for_its_own_limits() -> None:
    """It gives every refused call EPERM, at which programs that set it would end."""
    profile = seccomp_profile("x86_64", gvisor=True)
    rules = [
        rule for rule in profile["syscalls"] if {"setrlimit", "prlimit64"} & set(rule["names"])
    ]
    assert rules
    assert all(rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule for rule in rules)


def test_gvisor_lets_libraries_make_threads() -> None:
    """runsc answers every refusal with EPERM, on which libraries don't fall back."""
    assert answer(seccomp_profile("x86_64", gvisor=True), "clone3", 0) == ALLOWED
    assert answer(seccomp_profile("x86_64", gvisor=True), "unshare", 0) == errno.EPERM


@pytest.mark.parametrize(
    ("arch", "named"), [("x86_64", "SCMP_ARCH_X86_64"), ("aarch64", "SCMP_ARCH_AARCH64")]
)
def test_only_the_machines_own_calls_are_known(arch: str, named: str) -> None:
    """A foreign architecture's, 32-bit or x32, kill the caller; a machine without a profile gets no
    container."""
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


def test_each_rule_has_a_reason_and_each_call_one_answer() -> None:
    """What is pretended, or named in several groups, has conditions wherever it is named."""
    rules = load_rules()
    groups = (*rules.allow, *rules.agent, *rules.pretend, *rules.refuse)
    assert all(group.why.strip() and group.calls for group in (*groups, *rules.gvisor))
    named = Counter(call for group in (*groups, *rules.pretend) for call in group.calls)
    plain = [group for group in groups if not group.any_of]
    assert [call for group in plain for call in group.calls if named[call] > 1] == []
    written = tomllib.loads(Path(seccomp.__file__).with_name("seccomp.toml").read_text())
    assert set(written) == {"allow", "agent", "pretend", "refuse", "gvisor"}
    keys = {key for table in written.values() for item in table for key in item}
    assert keys <= {"why", "calls", "when", "unless", "error"}
