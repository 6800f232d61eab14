"""Compose files: what the services of a file mean for cells and ranges.

Lives here: reading and checking a file, its variables, and each key's meaning in a policy's
words. Pure but for reading the files that it names.
Must not: import Inspect, ask the host anything, or create a cell.
"""
