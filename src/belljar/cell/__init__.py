"""Joins isolation and channel into a cell; no operation begins before it is recorded."""
