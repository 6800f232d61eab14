"""The store: its locks and claims, scratch directories, the journal. Must not know what a part
holds, or end a cell.
"""
