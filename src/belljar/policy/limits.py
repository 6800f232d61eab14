"""What a cell may consume, as the program uses it: bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass

from belljar.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a cell may consume at most. The defaults are the format's.

    All state of a cell lives in memory: `memory_bytes` is for its processes, `disk_bytes` for what
    it writes, and a VM's memory is their sum and an overhead. `output_bytes` is the most that is
    kept of each stream of one command; what comes after is dropped and counted. At `exec_timeout_s`
    a command and its whole tree are killed, at `lifetime_s` the cell.
    """

    cpus: int = 1
    memory_bytes: int = 512 << 20
    disk_bytes: int = 512 << 20
    processes: int = 512
    lifetime_s: float = 4 * 3600.0
    exec_timeout_s: float = 600.0
    output_bytes: int = 10 << 20

    def memory_sum(self, limit_bytes: int) -> str:
        """A limit on a whole cell's memory, as the sum that it is."""
        memory_bytes, disk_bytes = self.memory_bytes, self.disk_bytes
        parts = {
            "memory": memory_bytes,
            "disk": disk_bytes,
            "overhead": limit_bytes - memory_bytes - disk_bytes,
        }
        return (
            f"{format_size(limit_bytes)} "
            f"({' + '.join(f'{name} {format_size(part)}' for name, part in parts.items())})"
        )
