"""The VMM's command line, and a template's key."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from belljar.plan import qemu
from belljar.plan.qemu import (
    KERNEL_COMMAND_LINE,
    MOUNT_POINTS,
    GuestLimits,
    Role,
    TemplateInputs,
    VmFds,
    VmShape,
    qemu_argv,
    template_key,
)

TCG = VmShape(vcpus=2, ram_mib=512, accel="tcg", cpu_model="max")
KVM = VmShape(vcpus=2, ram_mib=512, accel="kvm", cpu_model="host")
PROGRAM = "/usr/bin/qemu-system-x86_64"
SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
COMMON = [
    *(PROGRAM, "-name", "guest=c-0123456789ab", "-sandbox", SANDBOX),
    *("-nodefaults", "-no-user-config", "-nographic", "-no-reboot"),
]
WIRING = [
    *("-chardev", "socket,id=monitor,fd=10", "-mon", "chardev=monitor,mode=control"),
    *(
        "-add-fd",
        "fd=12,set=2",
        "-chardev",
        "file,id=console,path=/dev/fdset/2,append=on",
        "-serial",
        "chardev:console",
    ),
    *("-device", "virtio-serial-device", "-chardev", "socket,id=agent,fd=11"),
    *("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"),
    *(
        "-blockdev",
        "driver=raw,node-name=disk,read-only=on,file.driver=file,file.filename=/i/disk,file.locking=off",
    ),
    *(
        "-device",
        "virtio-blk-device,drive=disk",
        "-object",
        "rng-builtin,id=rng",
        "-device",
        "virtio-rng-device,rng=rng",
    ),
]


def argv(shape: VmShape, role: Role, counter_khz: int = 0) -> list[str]:
    """With fixed descriptors."""
    fds = VmFds(
        qmp=10,
        agent=11,
        console=12,
        kvm=13 if shape.accel == "kvm" else None,
        state=14 if role is Role.CLONE else None,
        net=15 if shape.nic else None,
    )
    return list(
        qemu_argv(
            PROGRAM, shape, role=role, name="c-0123456789ab", fds=fds, counter_khz=counter_khz
        )
    )


def test_template() -> None:
    """A template boots kernel and initramfs, its RAM a shared file; emulated, it is told its
    counter's rate."""
    assert argv(TCG, Role.TEMPLATE, 2_600_000) == [
        *COMMON,
        *(
            "-machine",
            "microvm,rtc=on,pic=off,pcie=off,usb=off,memory-backend=ram",
            "-accel",
            "tcg,tb-size=64",
        ),
        *("-cpu", "max", "-smp", "2", "-m", "512M"),
        *("-object", "memory-backend-ram,id=ram,size=512M"),
        *(
            "-kernel",
            "/i/kernel",
            "-initrd",
            "/i/initrd",
            "-append",
            f"{KERNEL_COMMAND_LINE} tsc_early_khz=2600000",
        ),
        *WIRING,
    ]


def test_clone() -> None:
    """A clone has no kernel, maps the RAM privately and can't write the file, and waits for its
    state."""
    assert argv(TCG, Role.CLONE) == [
        *COMMON,
        *(
            "-machine",
            "microvm,rtc=on,pic=off,pcie=off,usb=off,memory-backend=ram",
            "-accel",
            "tcg,tb-size=64",
        ),
        *("-cpu", "max", "-smp", "2", "-m", "512M"),
        *(
            "-object",
            "memory-backend-file,id=ram,size=512M,mem-path=/i/memory,share=off,readonly=on,rom=off",
        ),
        *WIRING,
        *("-incoming", "defer"),
    ]


OFFLOADS = (
    "csum=off,guest_csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,"
    "guest_ufo=off,guest_announce=off,ctrl_guest_offloads=off,mrg_rxbuf=off,status=off,ctrl_vlan=off,ctrl_rx_extra=off"
)
NIC = [
    *("-netdev", "dgram,id=net,local.type=fd,local.str=15"),
    *("-device", f"virtio-net-device,netdev=net,mac=02:00:00:00:00:01,{OFFLOADS}"),
]


@pytest.mark.parametrize("role", [Role.TEMPLATE, Role.CLONE])
def test_a_network_device(role: Role) -> None:
    """One more device, last, the same in template and clone: a datagram socket, and nothing that
    the frames' other side would have to make up for."""
    with_nic = argv(replace(TCG, nic=True), role)
    at = with_nic.index("-netdev")
    assert with_nic[:at] + with_nic[at + len(NIC) :] == argv(TCG, role)
    assert with_nic[at : at + len(NIC)] == NIC


DATA = [
    *("-blockdev", WIRING[WIRING.index("-blockdev") + 1].replace("disk,read", "data,read")),
    *("-device", "virtio-blk-device,drive=data"),
]


@pytest.mark.parametrize("role", [Role.TEMPLATE, Role.CLONE])
def test_a_second_disk(role: Role) -> None:
    """One more disk after the first, read-only as that, of which the guest is told when it boots;
    other weights are another template's."""
    with_data = argv(replace(TCG, data_disk=True), role)
    at = with_data.index("virtio-blk-device,drive=disk") + 1
    disk = [word.replace("/i/disk", "/i/data") for word in DATA]
    assert with_data[at : at + len(disk)] == disk
    without = [*with_data[:at], *with_data[at + len(disk) :]]
    assert [word.removesuffix(" data_disk") for word in without] == argv(TCG, role)
    assert any(word.endswith(" data_disk") for word in without) is (role is Role.TEMPLATE)
    assert template_key(INPUTS) != template_key(replace(INPUTS, data_digest="ab" * 32))


def test_kvm_comes_as_a_descriptor() -> None:
    """Under KVM the device is inherited, not opened: the jail has no /dev. There is no timer chip,
    and no counter to tell of."""
    words = argv(KVM, Role.PROOF, 2_600_000)
    assert words[words.index("-accel") + 1] == "kvm,device=/dev/fdset/1"
    assert "fd=13,set=1" in words
    assert words[words.index("-machine") + 1] == "microvm,rtc=on,pic=off,pcie=off,usb=off,pit=off"
    assert words[words.index("-append") + 1] == KERNEL_COMMAND_LINE


@pytest.mark.promise("2.3")
@pytest.mark.parametrize("shape", [TCG, KVM])
@pytest.mark.parametrize("role", list(Role))
def test_nothing_but_the_few_devices(shape: VmShape, role: Role) -> None:
    """No network, no display, no monitor on a path, no program to start, no file but the four mount
    points; the same input gives the same words."""
    words = argv(shape, role)
    devices = [word.split(",")[0] for flag, word in itertools.pairwise(words) if flag == "-device"]
    assert devices == [
        "virtio-serial-device",
        "virtserialport",
        "virtio-blk-device",
        "virtio-rng-device",
    ]
    assert not {
        "-netdev",
        "-nic",
        "-net",
        "-qmp",
        "-monitor",
        "-vnc",
        "-display",
        "-virtfs",
        "-drive",
    } & set(words)
    paths = {
        part
        for word in words[1:]
        for part in word.replace("=", ",").split(",")
        if part.startswith("/")
    }
    assert {path for path in paths if not path.startswith("/dev/fdset/")} <= set(MOUNT_POINTS)
    assert words == argv(shape, role)


def test_the_guest_is_told_nothing() -> None:
    """The kernel's command line, which the workload may read, is a stock one."""
    assert not [
        word
        for word in ("bell", "jar", "test", "eval", "sandbox", "cell")
        if word in KERNEL_COMMAND_LINE
    ]


@pytest.mark.parametrize(
    ("shape", "role", "fds"),
    [
        (TCG, Role.PROOF, VmFds(qmp=3, agent=4, console=5, kvm=6)),
        (KVM, Role.PROOF, VmFds(qmp=3, agent=4, console=5)),
        (TCG, Role.CLONE, VmFds(qmp=3, agent=4, console=5)),
        (TCG, Role.TEMPLATE, VmFds(qmp=3, agent=4, console=5, state=6)),
    ],
)
def test_descriptors_that_do_not_fit(shape: VmShape, role: Role, fds: VmFds) -> None:
    """A descriptor too many or too few is an error, not a guess."""
    with pytest.raises(ValueError, match="goes with"):
        qemu_argv(PROGRAM, shape, role=role, name="c-0", fds=fds)


INPUTS = TemplateInputs(
    image_digest="a" * 64,
    kernel_digest="b" * 64,
    initramfs_digest="c" * 64,
    vmm_version="10.0.2",
    vmm_digest="d" * 64,
    host_cpu="a processor",
    shape=VmShape(vcpus=1, ram_mib=512, accel="tcg", cpu_model="max"),
    guest=GuestLimits(
        memory_max_bytes=1 << 28, disk_bytes=1 << 27, disk_inodes=1 << 14, processes=100
    ),
    preload=("/bin/sh",),
)
CHANGES: list[dict[str, Any]] = [
    {"image_digest": "e" * 64},
    {"kernel_digest": "e" * 64},
    {"initramfs_digest": "e" * 64},
    {"vmm_version": "10.0.3"},
    {"vmm_digest": "e" * 64},
    {"host_cpu": "another processor"},
    {"preload": ()},
    *(
        {"shape": replace(INPUTS.shape, **change)}
        for change in (
            {"vcpus": 2},
            {"ram_mib": 514},
            {"accel": "kvm"},
            {"cpu_model": "host"},
            {"nic": True},
        )
    ),
    *(
        {"guest": replace(INPUTS.guest, **{name: 7})}  # type: ignore[arg-type]
        for name in ("memory_max_bytes", "disk_bytes", "disk_inodes", "processes", "capabilities")
    ),
    {"guest": replace(INPUTS.guest, debugger_calls=True)},
]


@pytest.mark.promise("3.1")
@pytest.mark.parametrize("change", CHANGES, ids=[next(iter(change)) for change in CHANGES])
def test_every_input_changes_the_key(change: dict[str, Any]) -> None:
    """Another value of any input is another template."""
    assert template_key(replace(INPUTS, **change)) != template_key(INPUTS)


@pytest.mark.parametrize("name", ["TEMPLATE_FORMAT", "ARGV_FORMAT", "KERNEL_COMMAND_LINE"])
def test_the_formats_change_the_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Belljar that would boot or save otherwise does not take this one's templates."""
    before = template_key(INPUTS)
    monkeypatch.setattr(qemu, name, "another")
    assert template_key(INPUTS) != before


def test_a_digest_is_a_digest() -> None:
    """A name or a short digest in a digest's place is refused."""
    with pytest.raises(ValueError, match="image_digest is not a SHA-256"):
        replace(INPUTS, image_digest="debian")
