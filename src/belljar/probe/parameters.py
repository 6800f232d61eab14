"""What the program is told of the cell's limits and of the host, besides what the host's witnesses
are called.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from belljar.plan import OciPlan, Plan
from belljar.plan.oci import MAX_TERMINALS, OPEN_FILES
from belljar.probe.routed import Router
from belljar.process import namespaces_of


def cell_parameters(plan: Plan, *, fresh: bool, router: Router | None = None) -> Mapping[str, str]:
    """The bounds that are tried, as the plan has them.

    `fresh`: nothing of a sample has run in the cell yet. `router`: what its port leads to.
    """
    limits = plan.limits
    port = (
        {"interface": router.interface, "interface_mac": router.mac} if router is not None else {}
    )
    return {
        **port,
        "processes": str(limits.processes),
        "disk_bytes": str(limits.disk_bytes),
        "open_files": str(_open_files(plan)),
        "terminals": str(MAX_TERMINALS),
        "fresh": "1" if fresh else "0",
        "capabilities": f"{plan.rights.mask:x}",
        "debugger_calls": "1" if plan.rights.calls else "0",
        "setuid_programs": "1" if plan.rights.setuid_programs else "0",
    }


def host_parameters(*, whole: bool) -> Mapping[str, str]:
    """The boot time; `whole`: also what names this host, for probes that look whether the cell
    shows it.

    That is for runs which a person asks for: the quick set, in cells where hostile code has run,
    gets nothing of the host's names.
    """
    told = {"btime": _boot_time()}
    if whole:
        told |= {
            "namespaces": " ".join(
                f"{name}:{number}" for name, number in namespaces_of(os.getpid()).items()
            ),
            "hostname": socket.gethostname(),
            "boot_id": _line(Path("/proc/sys/kernel/random/boot_id")),
            "machine_id": _line(Path("/etc/machine-id")),
        }
    return {name: value for name, value in told.items() if value}


def _open_files(plan: Plan) -> int:
    """The workload's hard limit of open files: the container's, else the guest agent's own, which
    is the same where the host allows it.
    """
    limits = plan.oci.config["process"]["rlimits"] if isinstance(plan, OciPlan) else ()
    return next(
        (int(limit["hard"]) for limit in limits if limit["type"] == "RLIMIT_NOFILE"), OPEN_FILES[1]
    )


def _boot_time() -> str:
    lines = Path("/proc/stat").read_text().splitlines()
    return next((line.split()[1] for line in lines if line.startswith("btime ")), "")


def _line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
