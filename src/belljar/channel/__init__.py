"""The byte pipe between host and guest agent: framing (sans-io) and the client.

Lives here: `wire` (bytes ↔ frames ↔ events, every length, id and state checked) and `client` (operations over a stream).
Must not: believe the guest; hold more than the bound per operation; know what a cell or a VM is.
"""
