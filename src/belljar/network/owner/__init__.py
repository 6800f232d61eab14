"""The owner's side of a range: makes it, reads its processes' events, records and ends it.

Lives here: `NetworkRange`, the event thread (`watch`), real upstreams (`dial`, `relay`).
Must not: touch a link, a rule or a frame.
"""
