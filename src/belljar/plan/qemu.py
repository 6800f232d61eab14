"""The VMM's command line, and a template's key. Pure, golden-tested."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from belljar.dataclass import asdict, dataclass
from belljar.plan.jail import JailLimits

Accel: TypeAlias = Literal["kvm", "tcg"]

ARGV_FORMAT: Final = 1  # part of a template's key: raised with each change it could notice
TEMPLATE_FORMAT: Final = 2  # Likewise, of a template's directory and of its guest's state

AGENT_PORT: Final = "org.qemu.guest_agent.0"  # stock guests have it, too
# In the jail's root, where only the VMM is; the guest sees none of these names.
KERNEL_PATH: Final = "/i/kernel"
INITRD_PATH: Final = "/i/initrd"
DISK_PATH: Final = "/i/disk"
DATA_DISK_PATH: Final = "/i/data"
MEMORY_PATH: Final = "/i/memory"
# A jail's root has an empty file at each: a read-only root can't get one later.
MOUNT_POINTS: Final = (KERNEL_PATH, INITRD_PATH, DISK_PATH, DATA_DISK_PATH, MEMORY_PATH)

# loglevel=1: the console is a small buffer nobody pumps, so only emergencies (a panic says
# everything by itself) may go there. Nobody reads pressure figures, groups by session or has a
# profile of these security modules: each is code that an emulated processor translates. swiotlb: 64
# MiB that a machine beyond 3 GiB would set aside for devices that reach low memory only; there are
# none.
KERNEL_COMMAND_LINE: Final = (
    "console=ttyS0 quiet loglevel=1 panic=-1 random.trust_cpu=off psi=0 noautogroup "
    "swiotlb=noforce lsm=lockdown,landlock,yama"
)
DATA_DISK_WORD: Final = " data_disk"  # the guest agent (boot.c) waits for the second disk
TEMPLATE_MAC: Final = "02:00:00:00:00:01"  # until RENEW, while the link is down
_OFFLOADS: Final = (  # each would make the frames' other side finish what the guest left undone
    "csum guest_csum gso host_tso4 host_tso6 host_ecn host_ufo guest_tso4 guest_tso6 guest_ecn "
    "guest_ufo guest_announce ctrl_guest_offloads mrg_rxbuf status ctrl_vlan ctrl_rx_extra"
)
# As virtio-net-device's properties.
_NO_OFFLOADS: Final = ",".join(f"{feature}=off" for feature in _OFFLOADS.split())
# QEMU's own seccomp filter, as strict as it goes: the VMM starts no program.
_SANDBOX: Final = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
_MIB: Final = 1 << 20
_KVM_FDSET: Final = 1  # opens as an inherited descriptor: the jail has no /dev
_CONSOLE_FDSET: Final = 2


class Role(StrEnum):
    """The VMM boots, or goes on from a template."""

    TEMPLATE = "template"
    CLONE = "clone"


@dataclass(frozen=True, slots=True, kw_only=True)
class VmShape:
    """The virtual machine, which a clone can't change."""

    vcpus: int
    ram_mib: int
    accel: Accel
    cpu_model: str
    nic: bool = False
    data_disk: bool = False  # A second disk, read-only; see `WEIGHTS_IN_CELL`


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestLimits:
    """They are part of the template."""

    memory_max_bytes: int
    disk_bytes: int
    disk_inodes: int
    processes: int
    capabilities: int = 0  # of the workload's root beside the usual ones; the kernel's mask
    debugger_calls: bool = False
    setuid_programs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VmFds:
    """`net` is a datagram socket, one frame a datagram."""

    qmp: int
    agent: int
    console: int
    kvm: int | None = None
    state: int | None = None
    net: int | None = None


def vmm_limits(shape: VmShape, lifetime_s: float, *, has_cpu_limit: bool = False) -> JailLimits:
    # TCG keeps 64 MiB of translated code (`tb-size`).
    overhead_mib = 192 if shape.accel == "tcg" else 96
    memory_mib = shape.ram_mib + overhead_mib + 8 * shape.vcpus
    return JailLimits(
        memory_max_bytes=memory_mib * _MIB,
        # The VMM's own threads (devices, migration) run beside the virtual processors.
        cpu_quota_percent=100 * (shape.vcpus + 1) if has_cpu_limit else None,
        processes=shape.vcpus + 80,  # threads, of which up to 64 wait for the disk
        lifetime_s=lifetime_s,
        # RLIMIT_AS counts reservations too: libraries; for each thread an arena of 64 MiB and a
        # stack of 8 MiB.
        address_space_bytes=(memory_mib + 1024 + 160 * shape.vcpus) * _MIB,
    )


def qemu_argv(
    program: str, shape: VmShape, *, role: Role, name: str, fds: VmFds, counter_khz: int = 0
) -> tuple[str, ...]:
    """Raises `ValueError` when descriptors don't fit."""
    needed = (shape.accel == "kvm", role is Role.CLONE, shape.nic)
    if tuple(fd is not None for fd in (fds.kvm, fds.state, fds.net)) != needed:
        raise ValueError("the descriptors of kvm, state and net don't fit the machine and its role")
    return (
        program,
        *("-name", f"guest={name}", "-sandbox", _SANDBOX),
        # With the guest's `panic=-1`, `-no-reboot` makes a panic the VMM's end.
        *("-nodefaults", "-no-user-config", "-nographic", "-no-reboot"),
        *_machine(shape, role, counter_khz if shape.accel == "tcg" else 0),
        *_devices(fds, has_data_disk=shape.data_disk),
        *(("-incoming", "defer") if role is Role.CLONE else ()),
    )


def _machine(shape: VmShape, role: Role, counter_khz: int) -> tuple[str, ...]:
    accel = f"kvm,device=/dev/fdset/{_KVM_FDSET}" if shape.accel == "kvm" else "tcg,tb-size=64"
    # A PIT is no use to a kernel that finds this machine's ACPI tables, but for one early
    # measurement.
    timer = ",pit=off" if shape.accel == "kvm" else ""
    machine = f"microvm,rtc=on,pic=off,pcie=off,usb=off{timer},memory-backend=ram"
    # A clone maps its template's file privately; both call their RAM "ram".
    kind, source = "ram", ""
    if role is Role.CLONE:
        kind, source = "file", f",mem-path={MEMORY_PATH},share=off,readonly=on,rom=off"
    backend = f"memory-backend-{kind},id=ram,size={shape.ram_mib}M{source}"
    # Emulated, the guest would measure its counter by the PIT, once; on a busy host that fails, and
    # nothing else here ticks.
    counter = f" tsc_early_khz={counter_khz}" if counter_khz else ""
    command_line = KERNEL_COMMAND_LINE + counter + (DATA_DISK_WORD if shape.data_disk else "")
    kernel = ("-kernel", KERNEL_PATH, "-initrd", INITRD_PATH, "-append", command_line)
    return (
        *("-machine", machine, "-accel", accel, "-cpu", shape.cpu_model),
        *("-smp", str(shape.vcpus), "-m", f"{shape.ram_mib}M"),
        *("-object", backend),
        *(() if role is Role.CLONE else kernel),  # a clone resumes
    )


def _disk(name: str, path: str) -> tuple[str, ...]:
    # Many VMMs read one file: QEMU's locks guard against writers, and there are none.
    file = f"file.driver=file,file.filename={path},file.locking=off"
    return (
        *("-blockdev", f"driver=raw,node-name={name},read-only=on,{file}"),
        *("-device", f"virtio-blk-device,drive={name}"),
    )


def _devices(fds: VmFds, *, has_data_disk: bool) -> tuple[str, ...]:
    # Plain frames only, both ways: what the guest would rather leave to the device it does itself,
    # as nobody behind the socket could make up for it
    nic = (
        *("-netdev", f"dgram,id=net,local.type=fd,local.str={fds.net}"),
        *("-device", f"virtio-net-device,netdev=net,mac={TEMPLATE_MAC},{_NO_OFFLOADS}"),
    )
    return (
        *(() if fds.kvm is None else ("-add-fd", f"fd={fds.kvm},set={_KVM_FDSET}")),
        *("-chardev", f"socket,id=monitor,fd={fds.qmp}", "-mon", "chardev=monitor,mode=control"),
        *("-add-fd", f"fd={fds.console},set={_CONSOLE_FDSET}"),
        *("-chardev", f"file,id=console,path=/dev/fdset/{_CONSOLE_FDSET},append=on"),
        *("-serial", "chardev:console"),
        *("-device", "virtio-serial-device", "-chardev", f"socket,id=agent,fd={fds.agent}"),
        *("-device", f"virtserialport,chardev=agent,name={AGENT_PORT}"),
        *_disk("disk", DISK_PATH),
        *(_disk("data", DATA_DISK_PATH) if has_data_disk else ()),
        # Needs no device file of the jail's, which has no /dev.
        *("-object", "rng-builtin,id=rng", "-device", "virtio-rng-device,rng=rng"),
        *(() if fds.net is None else nic),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateInputs:
    """`vmm_digest` covers libraries and firmware."""

    image_digest: str
    kernel_digest: str
    initramfs_digest: str
    vmm_version: str
    vmm_digest: str
    host_cpu: str
    shape: VmShape
    guest: GuestLimits
    data_digest: str = ""
    preload: tuple[str, ...] = ()


def template_key(inputs: TemplateInputs) -> str:
    """It differs for other inputs."""
    formats = {"template": TEMPLATE_FORMAT, "argv": ARGV_FORMAT}
    document = {"formats": {**formats, "command_line": KERNEL_COMMAND_LINE}, **asdict(inputs)}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
