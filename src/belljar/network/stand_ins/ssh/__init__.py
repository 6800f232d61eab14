"""A decoy SSH server: a bastion host with a restricted shell."""

from __future__ import annotations

from belljar.network.stand_ins.ssh.server import check, make

__all__ = ["check", "make"]
