"""Installed tools, OCI runtimes and KVM, and this user's subordinate ids.

Runtimes and KVM are believed only after a trial: on some hosts /dev/kvm opens and makes a VM, but
never runs a stock kernel.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from belljar.dataclass import dataclass, json_of, replace
from belljar.errors import BelljarError
from belljar.host.model import IdsFact, RuntimeFact, ToolFact, Trial, TrialState
from belljar.package import program_path
from belljar.store.scratch import write_whole
from belljar.subids import NEEDED_IDS, first_subordinate_id, grant_hint, user_name

QEMU_MIN: Final = "8.2"
# Its JSON is what the rules use (Debian 12).
NFT_MIN: Final = "1.0.6"
_VERSION: Final = re.compile(r"\d{1,8}(?:\.\d{1,8})+(?:~\d{1,8})?")
_TIMEOUT_S: Final = 20.0  # each answers in milliseconds
_MAX_OUTPUT_BYTES: Final = 64 << 10  # any program may have a tool's name
SEARCH_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    package: str
    use: str
    needed: bool = False
    needed_min: str = ""
    tier: str = "microvm"
    version_option: str = "--version"


def tools_for(arch: str) -> tuple[Tool, ...]:
    """Return needed ones first."""
    qemu = {"x86_64": "qemu-system-x86", "aarch64": "qemu-system-arm"}.get(arch, "qemu-system")
    unpacking = "unpacking images for containers and gVisor"
    squashfs = partial(Tool, package="squashfs-tools", version_option="-version")
    return (
        Tool(f"qemu-system-{arch}", qemu, "the microVM", needed=True, needed_min=QEMU_MIN),
        Tool("mmdebstrap", "mmdebstrap", "building images"),
        squashfs("mksquashfs", use="packing images"),
        Tool("skopeo", "skopeo", "importing images"),
        Tool("buildah", "buildah", "building images from Dockerfiles"),
        squashfs("unsquashfs", use=unpacking, needed=True, tier="oci"),
        Tool("nft", "nftables", "ranges' packet rules", needed_min=NFT_MIN, tier="network"),
    )


def tool_facts(tools: tuple[Tool, ...], cache_file: Path) -> tuple[ToolFact, ...]:
    return tuple(_fact(tool, cache_file) for tool in tools)


def find_program(name: str) -> str | None:
    """An ordinary user's PATH often lacks /usr/sbin."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SEARCH_PATH}")


def cached_version(path: str, option: str, cache_file: Path, *, read: Callable[[str], str]) -> str:
    """Cached until its file changes; "" if it is silent."""
    key, cached = f"version of {file_identity(path)}", read_json(cache_file)
    if isinstance(known := cached.get(key), str):
        return known
    if version := read(ask_text(path, option)):
        write_json(cache_file, {**cached, key: version})
    return version


def at_least(version: str, needed_min: str) -> bool:
    """Return False for an unknown version."""
    if not needed_min:
        return True
    return bool(version) and _numbers(version) >= _numbers(needed_min)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("~")[0].split(".") if part.isdigit())


def _fact(tool: Tool, cache_file: Path) -> ToolFact:
    version, path = "", find_program(tool.name)
    if path is not None:
        version = cached_version(
            path,
            tool.version_option,
            cache_file,
            read=lambda text: next(iter(_VERSION.findall(text)), ""),
        )
    ok = path is not None and at_least(version, tool.needed_min)
    needed = f" {tool.needed_min} or newer (Debian 12: from bookworm-backports)"
    hint = f"run `belljar setup`, or install {tool.package}{needed if tool.needed_min else ''}"
    return ToolFact(
        name=tool.name,
        use=tool.use,
        needed=tool.needed,
        path=path or "",
        version=version,
        needed_min=tool.needed_min,
        ok=ok,
        hint="" if ok else hint,
        tier=tool.tier,
    )


def file_identity(path: str) -> str:
    status = Path(path).stat()
    return f"{path}:{status.st_size}:{status.st_mtime_ns}"


def own_programs(*names: str) -> str:
    digest = hashlib.sha256()
    for name in names:
        with contextlib.suppress(OSError):
            digest.update(hashlib.sha256(program_path(name).read_bytes()).digest())
    return digest.hexdigest()[:16]


def run_briefly(*argv: str) -> tuple[int | None, str]:
    """Return a program's status and its output's start; None: it can't run, and why."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={"PATH": SEARCH_PATH, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError) as exc:
        return None, str(exc)
    return done.returncode, (done.stdout + done.stderr)[:_MAX_OUTPUT_BYTES].decode(errors="replace")


def ask_text(path: str, option: str) -> str:
    status, output = run_briefly(path, option)
    return "" if status is None else output


def read_json(file: Path) -> dict[str, object]:
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(file: Path, value: object) -> None:
    with contextlib.suppress(OSError):  # a cache is never an error
        for directory in (file.parent.parent, file.parent):
            directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        write_whole(file, json.dumps(value, indent=1, sort_keys=True) + "\n")


# Set-user-ID programs of `uidmap`: without them an ordinary user has no second id.
MAPPERS: Final = ("newuidmap", "newgidmap")


def ids_fact(*, is_root: bool) -> IdsFact:
    if is_root:
        return IdsFact(available=True)
    missing = [name for name in MAPPERS if shutil.which(name, path=SEARCH_PATH) is None]
    if missing:
        reason = f"{' and '.join(missing)} can't be found"
        return IdsFact(available=False, reason=reason, hint="install the package uidmap")
    name = user_name()
    files = {file: first_subordinate_id(Path("/etc", file)) for file in ("subuid", "subgid")}
    without = [f"/etc/{file}" for file, start in files.items() if start is None]
    if without:
        reason = f"{name} has no {NEEDED_IDS:,} subordinate ids in {' or '.join(without)}"
        return IdsFact(available=False, reason=reason, hint=grant_hint(name))
    return IdsFact(available=True, uid_start=files["subuid"] or 0, gid_start=files["subgid"] or 0)


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
            ours = f"uid {os.geteuid()}, belljar's {own_programs('agent', 'jail')}"
            key = f"{fact.tier}, {file_identity(fact.path)}, kernel {kernel_release}, {ours}"
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
    path = find_program(name)
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
    version = cached_version(path, "--version", cache_file, read=partial(parse_version, name))
    fact = replace(fact, version=version)
    if not at_least(version, needed_min):
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
    entry: Any = read_json(cache_file).get(key)
    with contextlib.suppress(
        TypeError, KeyError, ValueError
    ):  # an entry that is damaged, or missing
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
    write_json(cache_file, {**read_json(cache_file), key: entry})
    return trial
