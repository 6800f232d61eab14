"""What Belljar keeps on disk, and who may use which part of it at the same time.

Lives here: where the store is, its locks and claims, private working directories that no crash
leaves behind, the journal of host resources.
Must not: know what a part holds (an image, a kernel, a template), or start and end anything.
"""
