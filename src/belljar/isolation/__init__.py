"""Turns a plan into a live thing and back into nothing.

Lives here: one package a tier (`microvm` for now): jail, engine, template, clone, destruction with its proof, the journal of host resources.
Must not: talk to the guest beyond bringing it up; decide what a plan says.
"""

from belljar.isolation.reap import CellListing, Reaped, list_cells, reap
from belljar.isolation.survivors import Destruction

__all__ = ["CellListing", "Destruction", "Reaped", "list_cells", "reap"]
