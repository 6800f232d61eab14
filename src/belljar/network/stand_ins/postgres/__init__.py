"""A decoy PostgreSQL: a hot standby that holds what was made for its range."""

from __future__ import annotations

from belljar.network.stand_ins.postgres.server import check, make

__all__ = ["check", "make"]
