"""A decoy Redis: a read-only replica that holds what was made for its range."""

from __future__ import annotations

from belljar.network.stand_ins.redis.server import check, make

__all__ = ["check", "make"]
