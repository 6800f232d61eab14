"""The VMM's command line, and a template's key."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from belljar.plan import qemu

TCG = qemu.VmShape(vcpus=2, ram_mib=512, accel="tcg", cpu_model="max")
KVM = qemu.VmShape(vcpus=2, ram_mib=512, accel="kvm", cpu_model="host")
PROGRAM = "/usr/bin/qemu-system-x86_64"
SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
FILE = (
    "driver=raw,node-name={0},read-only=on,file.driver=file,file.filename=/i/{0},file.locking=off"
)


def argv(shape: qemu.VmShape, role: qemu.Role, counter_khz: int = 0) -> list[str]:
    fds = qemu.VmFds(
        qmp=10,
        agent=11,
        console=12,
        kvm=13 if shape.accel == "kvm" else None,
        state=14 if role is qemu.Role.CLONE else None,
        net=15 if shape.nic else None,
    )
    name = "c-0123456789ab"
    made = qemu.qemu_argv(PROGRAM, shape, role=role, name=name, fds=fds, counter_khz=counter_khz)
    return list(made)


OFFLOADS = (
    "csum=off,guest_csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off,"
    "guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,guest_announce=off,"
    "ctrl_guest_offloads=off,mrg_rxbuf=off,status=off,ctrl_vlan=off,ctrl_rx_extra=off"
)
NIC = [
    *("-netdev", "dgram,id=net,local.type=fd,local.str=15"),
    *("-device", f"virtio-net-device,netdev=net,mac=02:00:00:00:00:01,{OFFLOADS}"),
]
DATA = ["-blockdev", FILE.format("data"), "-device", "virtio-blk-device,drive=data"]


@pytest.mark.parametrize("role", [qemu.Role.TEMPLATE, qemu.Role.CLONE])
def test_one_more_device(role: qemu.Role) -> None:
    """The same in template and clone."""
    plain, with_nic = argv(TCG, role), argv(replace(TCG, nic=True), role)
    at = with_nic.index("-netdev")
    assert with_nic[at : at + len(NIC)] == NIC
    assert with_nic[:at] + with_nic[at + len(NIC) :] == plain
    with_data = argv(replace(TCG, data_disk=True), role)
    at = with_data.index("virtio-blk-device,drive=disk") + 1
    assert with_data[at : at + len(DATA)] == DATA
    without = with_data[:at] + with_data[at + len(DATA) :]
    assert [word.removesuffix(" data_disk") for word in without] == plain
    assert any(word.endswith(" data_disk") for word in without) is (role is qemu.Role.TEMPLATE)
    assert qemu.template_key(INPUTS) != qemu.template_key(replace(INPUTS, data_digest="ab" * 32))


def test_kvm_comes_as_a_descriptor() -> None:
    """Under KVM the device is inherited, not opened: the jail has no /dev."""
    words = argv(KVM, qemu.Role.TEMPLATE, 2_600_000)
    assert words[words.index("-accel") + 1] == "kvm,device=/dev/fdset/1"
    assert "fd=13,set=1" in words
    machine = "microvm,rtc=on,pic=off,pcie=off,usb=off,pit=off,memory-backend=ram"
    assert words[words.index("-machine") + 1] == machine
    assert words[words.index("-append") + 1] == qemu.KERNEL_COMMAND_LINE


@pytest.mark.promise("2.3")
@pytest.mark.parametrize("shape", [TCG, KVM])
@pytest.mark.parametrize("role", list(qemu.Role))
def test_nothing_but_the_few_devices(shape: qemu.VmShape, role: qemu.Role) -> None:
    """No network, display, monitor on a path, or program, and no file but the mount points."""
    words = argv(shape, role)
    devices = [word.split(",")[0] for flag, word in itertools.pairwise(words) if flag == "-device"]
    blk, rng = "virtio-blk-device", "virtio-rng-device"
    assert devices == ["virtio-serial-device", "virtserialport", blk, rng]
    assert {"-nodefaults", "-no-user-config", SANDBOX, FILE.format("disk")} <= {*words}
    ram = "memory-backend-file,id=ram,size=512M,mem-path=/i/memory,share=off,readonly=on,rom=off"
    assert (ram in words) is (role is qemu.Role.CLONE)
    never = "-netdev -nic -net -qmp -monitor -vnc -display -virtfs -drive"
    assert not {*never.split()} & {*words}
    parts = {part for word in words[1:] for part in word.replace("=", ",").split(",")}
    paths = {part for part in parts if part.startswith("/")}
    assert {path for path in paths if not path.startswith("/dev/fdset/")} <= set(qemu.MOUNT_POINTS)
    assert words == argv(shape, role)


def test_the_guest_is_told_nothing() -> None:
    """The kernel's command line, which the workload may read, is a stock one."""
    told = ("bell", "jar", "test", "eval", "sandbox", "cell")
    assert not [word for word in told if word in qemu.KERNEL_COMMAND_LINE]


INPUTS = qemu.TemplateInputs(
    image_digest="a" * 64,
    kernel_digest="b" * 64,
    initramfs_digest="c" * 64,
    vmm_version="10.0.2",
    vmm_digest="d" * 64,
    host_cpu="a processor",
    shape=qemu.VmShape(vcpus=1, ram_mib=512, accel="tcg", cpu_model="max"),
    guest=qemu.GuestLimits(
        memory_max_bytes=1 << 28, disk_bytes=1 << 27, disk_inodes=1 << 14, processes=100
    ),
    preload=("/bin/sh",),
)
SHAPES = ({"vcpus": 2}, {"ram_mib": 514}, {"accel": "kvm"}, {"cpu_model": "host"}, {"nic": True})
LIMITS = ("memory_max_bytes", "disk_bytes", "disk_inodes", "processes", "capabilities")
CHANGES: list[dict[str, Any]] = [
    *({name: "e" * 64} for name in ("image_digest", "kernel_digest", "initramfs_digest")),
    *({"vmm_version": "10.0.3"}, {"vmm_digest": "e" * 64}, {"host_cpu": "another"}),
    {"preload": ()},
    *({"shape": replace(INPUTS.shape, **change)} for change in SHAPES),
    *({"guest": replace(INPUTS.guest, **{name: 7})} for name in LIMITS),  # type: ignore[arg-type]
    {"guest": replace(INPUTS.guest, debugger_calls=True)},
]


@pytest.mark.promise("3.1")
def test_every_input_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another value of any input is another template."""
    keys = [
        qemu.template_key(INPUTS),
        *(qemu.template_key(replace(INPUTS, **each)) for each in CHANGES),
    ]
    for name in ("TEMPLATE_FORMAT", "ARGV_FORMAT", "KERNEL_COMMAND_LINE"):
        monkeypatch.setattr(qemu, name, f"another {name}")
        keys.append(qemu.template_key(INPUTS))
    assert len(set(keys)) == len(keys) == 1 + len(CHANGES) + 3
