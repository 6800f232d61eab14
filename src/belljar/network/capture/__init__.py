"""The packet record of a range: what is kept of it, and what is read back when the range has ended.

`main` is a process of its own, shut in as a gateway: everything in a record is a guest's.
"""
