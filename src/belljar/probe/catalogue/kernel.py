"""The kernel: files that steer it or tell of it, calls that act on the machine, and devices."""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.model import entry

_kernel = partial(entry, "kernel")

_FILES: Final = (
    _kernel(
        "helper_programs",
        tries="Writes back what is in core_pattern, modprobe, hotplug, poweroff_cmd and "
        "uevent_helper.",
        why="The kernel starts these programs as the host's root: CVE-2022-0811 set "
        "core_pattern, CVE-2025-52881 led runc's own writes there.",
        breach="One can be written.",
    ),
    _kernel(
        "settings",
        tries="Writes back settings of the whole machine in /proc/sys.",
        why="They are not the cell's: address randomisation, memory overcommitment, sysrq, "
        "pid_max of every neighbour.",
        breach="One can be written.",
    ),
    _kernel(
        "control_files",
        tries="Opens sysrq-trigger, mtrr, interrupt affinity, PCI, SCSI and ACPI files in /proc "
        "for writing.",
        why="CVE-2017-16539 removed the host's disk through /proc/scsi; sysrq-trigger reboots it "
        "(CVE-2025-52881).",
        breach="One opens.",
    ),
    _kernel(
        "sysfs",
        tries="Opens control files in /sys for writing: profiling, huge pages, power, "
        "processors, disks.",
        why="sysfs knows no namespace but the network's: what is written there is written for "
        "the host.",
        breach="One opens.",
    ),
    _kernel(
        "masked_files",
        tries="Reads what runtimes mask: timers, slabs, keys, page counts, interrupts, energy, "
        "firmware.",
        why="CVE-2017-5967 (timers), CVE-2020-8694 (PLATYPUS: keys from energy), CVE-2018-10892 "
        "(ACPI), CVE-2025-31133 (masks that are not).",
        breach="One has content.",
    ),
    _kernel(
        "counters",
        tries="Reads the host's numbers of terminals, files, inodes, groups and drivers, and "
        "looks whether /proc/stat and /proc/vmstat count.",
        why="A number that one cell moves and another reads is a wire between them: pty/nr and "
        "file-nr carried 32 of 32 bits.",
        breach="One has content, or counts.",
    ),
    _kernel(
        "addresses",
        tries="Reads the first address in /proc/kallsyms.",
        why="Knowing where the kernel lies is the first step of most exploits.",
        breach="It is not zero.",
    ),
    _kernel(
        "debug_files",
        tries="Lists debugfs, tracefs, securityfs, bpffs, pstore, EFI variables and FUSE's "
        "connections.",
        why="debugfs was never meant to be safe; EFI variables outlive the machine's disk.",
        breach="One of them has entries.",
    ),
    _kernel(
        "binary_formats",
        tries="Opens the register of binary formats for writing.",
        why="An interpreter registered there is started by every process of the machine, with "
        "the flag C also by its set-user-id programs.",
        breach="It opens.",
    ),
    _kernel(
        "log_read",
        tries="Reads the kernel's log through syslog, /dev/kmsg and /proc/kmsg.",
        why="It is one for all containers, and tells addresses, devices and what neighbours "
        "crash of.",
        breach="It can be read.",
    ),
    _kernel(
        "log_write",
        tries="Opens /dev/kmsg for writing.",
        why="Lines of the cell's in the host's log: forged evidence, or escape sequences for "
        "all that read it.",
        breach="It opens.",
    ),
    _kernel(
        "control_groups",
        tries="Opens limits and process lists of every mounted control group for writing.",
        why="A process that writes there lifts its own limits; with release_agent it is the "
        "host's root (CVE-2022-0492, CVE-2021-4197).",
        breach="One opens.",
    ),
)

_CALLS: Final = (
    _kernel(
        "modules",
        tries="Loads an empty kernel module, which no kernel takes.",
        why="CAP_SYS_MODULE is the host's kernel; containers started with it were escaped so.",
        breach="The permission check is passed.",
    ),
    _kernel(
        "kexec",
        tries="Calls kexec_load with flags that don't exist.",
        why="It replaces the running kernel with another.",
        breach="The permission check is passed.",
    ),
    _kernel(
        "bpf",
        tries="Makes a BPF map of one entry.",
        why="The verifier has let programs write kernel memory: CVE-2020-8835, CVE-2021-3490.",
        breach="It is made.",
    ),
    _kernel(
        "perf",
        tries="Opens a performance counter for itself with the kernel, and one for the whole "
        "machine.",
        why="CVE-2013-2094 and CVE-2022-1729 gave root; counters also are side channels.",
        breach="One opens.",
    ),
    _kernel(
        "userfaultfd",
        tries="Calls userfaultfd, with and without user mode only.",
        why="It stops the kernel in the middle of a copy, which makes races certain; "
        "CVE-2022-2590 is its own.",
        breach="It gives a descriptor.",
    ),
    _kernel(
        "io_uring",
        tries="Sets up an io_uring of one entry.",
        why="In 2022, 60 % of the kernel exploits paid by Google's programme used it "
        "(CVE-2022-29582); it also does what filters forbid as calls.",
        breach="It gives a descriptor.",
    ),
    _kernel(
        "aio",
        tries="Makes a context for asynchronous input and output on the host's kernel.",
        why="Contexts are counted for the whole host (fs.aio-max-nr): one cell took 24,000 of "
        "65,536, and databases of others had none.",
        breach="It is made.",
    ),
    _kernel(
        "page_cache",
        tries="Asks the host's kernel which pages of a file are in memory: mincore, preadv2 with "
        "RWF_NOWAIT, cachestat.",
        why="CVE-2019-5489: the page cache of files that several cells have is one, so what one "
        "drops or reads the other sees.",
        breach="One of them answers.",
    ),
    _kernel(
        "other_processes",
        tries="Calls kcmp, pidfd_getfd and process_madvise with arguments that can't work, unless"
        " the plan grants them.",
        why="They compare, take and change what belongs to another process; container engines "
        "give them to tracers only.",
        breach="The permission check is passed.",
    ),
    _kernel(
        "keys",
        tries="Adds a key to a keyring of its own process.",
        why="Keyrings are not namespaced as processes are: CVE-2016-0728, and a place to leave "
        "something for a neighbour.",
        breach="It is added.",
    ),
    _kernel(
        "persistent_keys",
        tries="Asks for its user's persistent keyring.",
        why="It outlives every process of the user, for days: a message to the next cell with "
        "the same id.",
        breach="It is given.",
    ),
    _kernel(
        "rare_sockets",
        tries="Makes sockets of rare families and protocols: ALG, KEY, TIPC, RDS, CAN, "
        "Bluetooth, X25, KCM, MPTCP, UDP-Lite, SCTP, "
        "SMC, XDP, QIPCRTR, IB.",
        why="Old code that a socket call loads: CVE-2010-3904 (RDS), CVE-2019-8912 (ALG), "
        "CVE-2021-43267 (TIPC).",
        breach="One is made.",
    ),
    _kernel(
        "clock",
        tries="Reads the clock's status and writes it back.",
        why="The clock is one for the machine: it orders logs and ends certificates.",
        breach="It is written.",
    ),
    _kernel(
        "host_name",
        tries="Sets the host name to what it is.",
        why="With the host's UTS namespace, that would be the host's name; it needs CAP_SYS_ADMIN.",
        breach="It is set.",
    ),
    _kernel(
        "reboot",
        tries="Calls reboot with wrong magic numbers.",
        why="It ends the machine, or the namespace with everything that watches in it.",
        breach="The permission check is passed.",
    ),
    _kernel(
        "swap",
        tries="Calls swapon without a file.",
        why="Memory of every neighbour would go into a file of the cell's.",
        breach="The permission check is passed.",
    ),
    _kernel(
        "accounting",
        tries="Calls acct with a file that can't be.",
        why="The kernel would write a line for every process of the machine into the cell's "
        "file, or stop writing them.",
        breach="The permission check is passed.",
    ),
    _kernel(
        "watch_files",
        tries="Asks fanotify to watch contents.",
        why="It hands over open descriptors of files that others open, whole file systems at a "
        "time.",
        breach="It gives a descriptor.",
    ),
    _kernel(
        "ports",
        tries="Asks for the processor's I/O ports (ioperm, iopl).",
        why="Ports are the hardware: disks, timers, and the hypervisor's devices (CVE-2015-3456, "
        "VENOM).",
        breach="They are given.",
        quick=False,
    ),
    _kernel(
        "foreign_calls",
        tries="Makes a harmless system call by another architecture's numbers.",
        why="A filter that knows one table is walked around through the other: CVE-2009-0835.",
        breach="It goes through.",
        quick=False,
    ),
)

KERNEL: Final = _FILES + _CALLS


_devices = partial(entry, "devices")

DEVICES: Final = (
    _devices(
        "block_present",
        tries="Opens every block device in /dev for reading.",
        why="A disk under the file system has no permissions: privileged containers read and "
        "write the host's with debugfs.",
        breach="One opens.",
    ),
    _devices(
        "block_made",
        tries="Makes nodes for the machine's disks and opens them.",
        why="CAP_MKNOD without a device filter is the host's disk; containers hold CAP_MKNOD by "
        "default.",
        breach="A node that was made opens.",
        quick=False,
    ),
    _devices(
        "memory_present",
        tries="Opens /dev/mem, /dev/kmem, /dev/port, /proc/kcore, /dev/nvram and the processor's "
        "registers.",
        why="Physical memory holds every other cell and the host; /proc/kcore is among what "
        "runtimes must mask (CVE-2025-31133).",
        breach="One opens.",
    ),
    _devices(
        "character_made",
        tries="Makes nodes for memory, ports, the kernel's log, tun, FUSE and KVM, and opens them.",
        why="A node is a number: where no device filter and no nodev stands in the way, every "
        "driver can be reached.",
        breach="A node that was made opens.",
        quick=False,
    ),
    _devices(
        "unusual",
        tries="Looks for character devices in /dev beyond null, zero, full, random, urandom, tty "
        "and terminals.",
        why="KVM, vhost, vfio, FUSE and GPU drivers are kernel code with a history "
        "(CVE-2021-29657 in KVM, CVE-2024-0132 at the GPU's toolkit).",
        breach="There is one that may be read or written.",
    ),
    _devices(
        "tunnel",
        tries="Opens /dev/net/tun.",
        why="The agents of the 2026 intrusion brought a VPN with them; a tunnel needs a device "
        "or a user-space stack.",
        breach="It opens.",
    ),
    _devices(
        "terminal_input",
        tries="Types a character into a terminal of its own with TIOCSTI.",
        why="With a terminal of the host's, that is a command in the operator's shell: "
        "CVE-2017-5226, CVE-2019-10063.",
        breach="The call succeeds.",
        quick=False,
    ),
    _devices(
        "consoles",
        tries="Opens the machine's consoles for writing: console, tty0, tty1, serial ports, "
        "hvc0, screen memory.",
        why="What is written there is read by people and by log collectors; /dev/console was a "
        "road in runc (CVE-2025-52565).",
        breach="One opens.",
    ),
)
