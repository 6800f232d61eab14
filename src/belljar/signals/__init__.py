"""Signals: what contact with decoys or protected data shows about a model.

Here: the values that are looked for, the guard's scanner and its decoders, how decoys are minted,
and what an event of the ledger says about them. All of it is pure: bytes and events in, findings
out. Not here: placing files in cells (`cell`), the network (`network`), stopping (`isolation`).
"""
