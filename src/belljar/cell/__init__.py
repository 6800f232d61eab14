"""Joins isolation and channel into a cell; owns its lifetime and its record.

No operation takes effect before its start is recorded.
"""
