"""Real cells, deliberately weakened by plans that only these tests make."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.fakes.recorder import MemoryRecorder
from tests.security.conftest import policy_of

from belljar.cell import open as opening
from belljar.cell.open import open_cell
from belljar.cell.parts import Parts, prepare
from belljar.isolation.oci.container import Container
from belljar.plan.jail import JailMount
from belljar.plan.model import OciPlan, Plan
from belljar.policy.loaded import with_tier
from belljar.probe import witness
from belljar.probe.model import ProbeReport, Verdict
from belljar.probe.run import probe_cell

pytestmark = [pytest.mark.anyio, pytest.mark.root]

POLICY = (
    "belljar: 1\nrisk: low\nuser: root\nresources: {memory: 256MiB, disk: 64MiB, processes: 256}\n"
)
BREACHED = {
    "channel.port": "a device of the jail's under the name of a virtio port",
    "devices.unusual": "the same",
    "fingerprint.mounts": "a mount whose source has a telling name",
    "kernel.masked_files": "no path of /proc is masked",
    "resources.disk": "the writable layer is larger than what is promised",
    "resources.processes": "the control group allows more than what is promised",
}
STANDING = (
    *("network.tcp4", "namespaces.make_user", "doors.roots", "kernel.modules", "files.write_host"),
)


def plan_carelessly(weaken: Callable[[Plan], Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are made by the weakened plan from now on."""

    async def careless(*args: Any, **options: Any) -> Parts:  # noqa: ANN401 - as `prepare` takes them
        parts: Any = await prepare(*args, **options)
        return cast("Parts", replace(parts, plan=weaken(parts.plan)))

    monkeypatch.setattr(opening, "prepare", careless)


def mount_of(target: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source, "options": [*options]}


def weakened(plan: Plan) -> Plan:
    assert isinstance(plan, OciPlan)
    linux = {**plan.oci.config["linux"], "maskedPaths": []}
    mounts = [
        *plan.oci.config["mounts"],
        mount_of("/dev/vport0p1", "bind", "/dev/zero", "bind"),
        mount_of("/srv", "tmpfs", "sandbox", "ro", "size=4k"),
    ]
    config: dict[str, Any] = {**plan.oci.config, "linux": linux, "mounts": mounts}
    promised = replace(plan.limits, processes=8, disk_bytes=1 << 20)
    return replace(plan, oci=replace(plan.oci, config=config), limits=promised)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The host's directory for canaries, in every jail for a careless config to hand on."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o1777)
    mounts = Container.jail_mounts
    shared = JailMount(kind="bind", source=directory, target=IN_JAIL, writable=True)
    monkeypatch.setattr(Container, "jail_mounts", lambda self: (*mounts(self), shared))
    monkeypatch.setattr(witness, "PLACE", directory)
    yield directory
    shutil.rmtree(directory)


IN_JAIL = "/run/shared"
DROP_BOUNDING = {"index": 0, "value": 24, "op": "SCMP_CMP_EQ"}


def host_directory(config: dict[str, Any], place: Path, *, how: str) -> None:
    """Bound into the cell under the path that it has on the host."""
    config["mounts"].append(mount_of(str(place), "bind", IN_JAIL, "bind", "rw", how))


def shared_directory(config: dict[str, Any], place: Path) -> None:
    host_directory(config, place, how="rshared")


def bound_directory(config: dict[str, Any], place: Path) -> None:
    host_directory(config, place, how="rbind")


def pretend(*calls: str, **only_if: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """A rule that answers with success and does nothing: the agent's wall is not built."""
    return {"names": list(calls), "action": "SCMP_ACT_ERRNO", "errnoRet": 0, **only_if}


def extra_capability(config: dict[str, Any], _: Path) -> None:
    """CAP_NET_ADMIN for the runtime's process, which can't take it from the workload."""
    for held in config["process"]["capabilities"].values():
        held.append("CAP_NET_ADMIN")
    rules = config["linux"]["seccomp"]["syscalls"]
    for rule in rules:
        rule["names"] = [name for name in rule["names"] if name not in {"capset", "prctl"}]
    others: dict[str, Any] = {"names": ["prctl"], "action": "SCMP_ACT_ALLOW"}
    others["args"] = [DROP_BOUNDING | {"op": "SCMP_CMP_NE"}]
    added = [pretend("capset"), pretend("prctl", args=[DROP_BOUNDING]), others]
    config["linux"]["seccomp"]["syscalls"] = [*(rule for rule in rules if rule["names"]), *added]


def no_seccomp(config: dict[str, Any], _: Path) -> None:
    """Every call is allowed, by the runtime's filter and by the agent's."""
    allowed = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [pretend("seccomp")]}
    config["linux"]["seccomp"] |= allowed


def limits_its_own(config: dict[str, Any], _: Path) -> None:
    """Without the rule for the limit of core dumps: every change downwards is done."""
    calls = ["setrlimit", "prlimit64"]
    rules = config["linux"]["seccomp"]["syscalls"]
    rules = [rule for rule in rules if not set(calls) & set(rule["names"])]
    allowed = {"names": calls, "action": "SCMP_ACT_ALLOW"}
    config["linux"]["seccomp"]["syscalls"] = [*rules, allowed]


def of_config(
    change: Callable[[dict[str, Any], Path], None], place: Path
) -> Callable[[Plan], Plan]:
    def weaken(plan: Plan) -> Plan:
        assert isinstance(plan, OciPlan)
        config = copy.deepcopy(dict(plan.oci.config))
        change(config, place)
        return replace(plan, oci=replace(plan.oci, config=config))

    return weaken


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakness:
    """A wall that a config leaves out, the probes that breaches, and some that stand."""

    tier: str = "container"
    weaken: Callable[[dict[str, Any], Path], None]
    breached: frozenset[str]
    standing: tuple[str, ...]


CANARY = frozenset({"files.read_host", "files.write_host"})
CAPABILITIES = ("namespaces.capabilities", "network.administer")
FILES = ("files.read_host", "mounts.shared")
CALLS = ("namespaces.make_user", "kernel.rare_sockets")
WEAKNESSES = (
    Weakness(
        weaken=shared_directory,
        breached=CANARY | {"files.host_socket", "mounts.shared"},
        standing=(*CAPABILITIES, *CALLS),
    ),
    Weakness(weaken=extra_capability, breached=frozenset(CAPABILITIES), standing=(*FILES, *CALLS)),
    Weakness(
        weaken=no_seccomp,
        breached=frozenset({*CALLS, "namespaces.clone3_user"}),
        standing=(*FILES, *CAPABILITIES),
    ),
    Weakness(
        tier="gvisor",
        weaken=bound_directory,
        breached=CANARY,
        standing=("files.host_socket", "namespaces.host_ids", "kernel.modules", "network.tcp4"),
    ),
)


def check(report: ProbeReport, breached: Collection[str], standing: Collection[str]) -> None:
    assert report.problem == ""
    assert report.verdict is Verdict.BREACHED
    assert {finding.name for finding in report.of(Verdict.BREACHED)} == set(breached)
    assert {finding.name for finding in report.of(Verdict.CONTAINED)} == set(standing)


@pytest.mark.promise("2.9")
@pytest.mark.parametrize(
    "weakness", WEAKNESSES, ids=lambda weakness: f"{weakness.tier}-{weakness.weaken.__name__}"
)
async def test_a_hole_is_a_breach_by_name(
    weakness: Weakness, place: Path, vm_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it lets through is breached in a real cell, and nothing else."""
    plan_carelessly(of_config(weakness.weaken, place), monkeypatch)
    which = [*weakness.breached, *weakness.standing]
    async with open_cell(with_tier(policy_of(POLICY), weakness.tier), home=vm_home) as cell:
        report = await probe_cell(cell, which=which, recorder=MemoryRecorder())
    check(report, weakness.breached, weakness.standing)


@pytest.mark.promise("2.9")
async def test_missing_walls_are_breaches_and_the_others_stand(
    vm_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wall that the plan leaves out is a breach by name; the others are contained."""
    plan_carelessly(weakened, monkeypatch)
    async with open_cell(policy_of(POLICY), home=vm_home) as cell:
        report = await probe_cell(cell, which=[*BREACHED, *STANDING], recorder=MemoryRecorder())
    check(report, BREACHED, STANDING)


@pytest.mark.promise("8.2")
async def test_the_jail_holds_the_limit_of_core_dumps_too(
    vm_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the container's own rule the jail around it refuses to lower the limit."""
    plan_carelessly(of_config(limits_its_own, tmp_path), monkeypatch)
    async with open_cell(with_tier(policy_of(POLICY), "container"), home=vm_home) as cell:
        report = await probe_cell(cell, which="resources.core_files", recorder=MemoryRecorder())
        lowered = await cell.exec(["sh", "-c", "ulimit -c 0; ulimit -c"])
    assert report.verdict is Verdict.CONTAINED
    assert b"not permitted" in lowered.stderr.lower(), lowered
