"""The owner's side of a range: makes it, hears what its processes report, records and ends it.

Lives here: `open_range`, the thread that reads events (`watch`), real upstreams (`dial`), budgets.
Must not: touch a link, a rule or a frame.
"""
