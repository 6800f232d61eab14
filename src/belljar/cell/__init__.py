"""Joins isolation and channel into a cell; owns its lifetime and its record.

Lives here: `open_cell`, the recorded operations, the join of policy, plan and image; `open_pool`:
cells made ahead, which no two takers ever share.
Must not: let an operation take effect before its start is recorded.
"""
