"""What an OCI runtime is told."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from functools import partial

import pytest

from belljar.host.model import RuntimeFact
from belljar.plan.oci import (
    AGENT_IN_CELL,
    ID_COUNT,
    PROBE_IN_CELL,
    OciCell,
    OciShape,
    oci_config,
    oci_shape,
    runtime_argv,
)
from belljar.policy.limits import NOTHING_GRANTED, Granted, Resources, Tier

TIERS = (Tier.CONTAINER, Tier.GVISOR)
RUNC = RuntimeFact(tier="container", name="runc", kind="runc", path="/r", version="1.1.5")
RUNSC = RuntimeFact(tier="gvisor", name="runsc", kind="runsc", path="/r", version="20240729")
CELL = OciCell(hostname="host-1")


def shape_of(
    tier: Tier, runtime: RuntimeFact = RUNC, rights: Granted = NOTHING_GRANTED
) -> OciShape:
    return oci_shape(tier, runtime, Resources(), arch="x86_64", open_files_max=1024, rights=rights)


@pytest.mark.promise("2.2")
@pytest.mark.parametrize("tier", TIERS)
def test_a_container_is_closed_on_every_side(tier: Tier) -> None:
    """All namespaces, own ids, nothing gained by execve, no device, hook or capability to inherit."""
    config = oci_config(shape_of(tier), CELL)
    linux, process = config["linux"], config["process"]
    namespaces = {"user", "pid", "network", "ipc", "uts", "mount", "cgroup"}
    assert {item["type"] for item in linux["namespaces"]} == namespaces
    assert not any("path" in item for item in linux["namespaces"])
    for kind in ("uidMappings", "gidMappings"):
        assert linux[kind] == [{"containerID": 0, "hostID": 1, "size": ID_COUNT}]
    assert process["noNewPrivileges"] is True
    assert not {"devices", "resources", "cgroupsPath"} & set(linux)
    assert set(linux.get("sysctl", {})) <= {"net.ipv4.ip_unprivileged_port_start"}
    assert not {"hooks", "annotations"} & set(config)
    assert set(process["capabilities"]) == {"bounding", "effective", "permitted"}
    never = ("SYS_MODULE", "SYS_RAWIO", "SYS_PTRACE", "NET_ADMIN", "BPF", "PERFMON", "SYS_BOOT")
    assert not {f"CAP_{name}" for name in never} & set(process["capabilities"]["bounding"])
    assert linux["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"


@pytest.mark.parametrize("tier", TIERS)
def test_every_mount_is_bounded_and_what_is_bound_in_is_read_only(tier: Tier) -> None:
    """A file system in memory without a size would be a hole in `disk`."""
    for mount in oci_config(shape_of(tier), CELL)["mounts"]:
        options = set(mount["options"])
        assert "nosuid" in options, mount
        if mount["type"] == "tmpfs":
            assert any(option.startswith("size=") for option in options), mount
        if mount["type"] == "bind":
            assert {"ro", "nodev"} <= options, mount


def test_devices_of_the_shape_are_all_that_is_bound_besides() -> None:
    """Each at its own path, by which it can be opened, and never with programs or set-user-ID."""
    plain = shape_of(Tier.CONTAINER)
    mounts = oci_config(replace(plain, devices=("/dev/nvidiactl", "/dev/nvidia0")), CELL)["mounts"]
    more = [mount for mount in mounts if mount not in oci_config(plain, CELL)["mounts"]]
    assert [mount["source"] for mount in more] == ["/dev/nvidiactl", "/dev/nvidia0"]
    for mount in more:
        assert mount["destination"] == mount["source"]
        assert {"nosuid", "noexec"} <= set(mount["options"])
        assert "nodev" not in mount["options"]


@pytest.mark.promise("2.2")
def test_the_hosts_sysfs_is_not_in_a_container() -> None:
    """But for the processors that are on; gVisor's own sysfs has nothing of the host."""
    container, gvisor = (oci_config(shape_of(tier), CELL)["mounts"] for tier in TIERS)
    assert "sysfs" not in {mount["type"] for mount in container}
    places = {mount["destination"] for mount in container}
    processors = {f"/sys/devices/system/cpu/{name}" for name in ("online", "possible", "present")}
    assert {place for place in places if place.startswith("/sys/")} == processors
    bound = [mount["source"] for mount in gvisor if mount["type"] == "bind"]
    assert not [source for source in bound if source.startswith("/sys")]


@pytest.mark.parametrize("tier", TIERS)
def test_only_what_is_a_cells_own_differs(tier: Tier) -> None:
    """And it is the caller's copy: the plan stays as it is."""
    shape = shape_of(tier)
    before = copy.deepcopy(dict(shape.config))
    one = oci_config(shape, OciCell(hostname="a"))
    other = oci_config(shape, OciCell(hostname="b", root="/r"))
    other["process"]["args"].append("x")
    other["linux"]["seccomp"]["syscalls"].clear()
    assert dict(shape.config) == before
    assert (one["hostname"], one["root"]) == ("a", {"path": "/new", "readonly": False})
    process = one["process"]
    assert process["args"] == [AGENT_IN_CELL, "--contained", "0", AGENT_IN_CELL, PROBE_IN_CELL]
    assert json.loads(json.dumps(one)) == one
    seen = [*(mount["destination"] for mount in one["mounts"]), *process["args"], *process["env"]]
    assert not [text for text in seen if re.search(r"belljar|test|eval|sandbox|probe|jail", text)]
    alone, weighted = oci_config(shape, CELL), oci_config(shape, replace(CELL, weights="/run/w"))
    (mount,) = [each for each in weighted["mounts"] if each["destination"] == "/weights"]
    assert mount["source"] == "/run/w"
    assert {"bind", "ro", "nosuid", "nodev", "noexec"} <= {*mount["options"]}
    weighted["mounts"].remove(mount)
    assert weighted == alone


def test_the_command_line_is_the_runtimes_own() -> None:
    """gVisor gets no network and no socket of the host; both end once the container runs."""
    argv = partial(runtime_argv, program="/r")
    runc, runsc = (argv(shape_of(Tier.GVISOR, runtime)) for runtime in (RUNC, RUNSC))
    assert runc == ("/r", "--root", "/run/r", "run", "--detach", "--bundle", "/bundle", "c")
    assert {"--network=none", "--host-uds=none", "--oci-seccomp", "--platform=systrap"} <= {*runsc}
    assert runsc[-5:] == runc[-5:]
    assert argv(shape_of(Tier.GVISOR, RUNC), has_port=True) == runc
    raw = Granted(capabilities=("NET_ADMIN",))
    for rights, words in ((NOTHING_GRANTED, []), (raw, ["--net-raw"])):
        told = argv(shape_of(Tier.GVISOR, RUNSC, rights), has_port=True)
        asked = [word for word in told if word.startswith(("--network", "--net-raw"))]
        assert asked == ["--network=sandbox", *words]


@pytest.mark.parametrize(("tier", "runtime"), [*zip(TIERS, (RUNC, RUNSC), strict=True)])
def test_a_port_is_in_the_stages_network_namespace(tier: Tier, runtime: RuntimeFact) -> None:
    """A container has none of its own then, and so no right over it."""
    shape = shape_of(tier, runtime)
    alone, connected = oci_config(shape, CELL), oci_config(shape, replace(CELL, has_port=True))
    theirs = [item for item in connected["linux"]["namespaces"] if item["type"] == "network"]
    copied = [{"type": "network", "path": "/proc/self/ns/net"}]
    assert theirs == (copied if runtime is RUNSC else [])
    # The stage's has it already, and runc sets none where it makes no network
    ports = {"net.ipv4.ip_unprivileged_port_start": "0"}
    assert alone["linux"].pop("sysctl", None) == (ports if runtime is RUNC else None)
    for config in (alone, connected):
        kept = [item for item in config["linux"]["namespaces"] if item["type"] != "network"]
        config["linux"]["namespaces"] = kept
    assert alone == connected
