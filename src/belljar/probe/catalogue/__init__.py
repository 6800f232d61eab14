"""What is tried in a cell, why, and what a breach would look like.

Data; `native/probes/` in the repository is what tries it.

Names, order of groups and the quick set are the program's: a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from belljar.probe.catalogue import fingerprint, host, kernel, namespaces, network
from belljar.probe.model import Probe

PROBES: Final[tuple[Probe, ...]] = (
    *host.PERSISTENCE,
    *host.FILES,
    *host.PROCESSES,
    *kernel.KERNEL,
    *kernel.DEVICES,
    *namespaces.MOUNTS,
    *namespaces.NAMESPACES,
    *network.NETWORK,
    *namespaces.RESOURCES,
    *network.CHANNEL,
    *host.DOORS,
    *fingerprint.FINGERPRINT,
)

GROUPS: Final[tuple[str, ...]] = tuple(dict.fromkeys(probe.group for probe in PROBES))

FINGERPRINT: Final = "fingerprint"
"""The one group that is not about containment: what tells a program where it is."""

MORE_PARAMETERS: Final[Mapping[str, str]] = {
    "btime": "when the host was started, as /proc/stat says: numbers mean something on the "
    "host's own kernel only",
    "namespaces": "the host's namespaces, `mnt:4026531841 pid:…`; optional, since the host looks "
    "at the cell's processes",
    "open_files": "how many descriptors a process of the cell may have; without it "
    "`resources.open_files` can't be tried",
    "processes": "how many processes the cell may have; without it `resources.processes` can't "
    "be tried",
    "terminals": "how many terminals the cell may have; without it `resources.terminals` can't "
    "be tried",
    "disk_bytes": "how many bytes the cell may write; without it `resources.disk` can't be tried",
    "fresh": "1 where nothing of a sample has run yet: only then are leftovers looked for",
    "capabilities": "which capabilities the plan grants beside the usual ones, in hex",
    "setuid_programs": "1 where the plan lets set-user-ID programs gain their owner's rights",
    "debugger_calls": "1 where the plan opens the calls by which debuggers work",
    "weights": "1 in a model's cell: only there may a file server give /weights",
    "hostname": "the host's name; optional",
    "boot_id": "the host's boot id; optional",
    "machine_id": "the host's machine id; optional",
}
"""What the program reads from standard input besides `model.PARAMETERS`."""
