"""The command line: parse, call, render.

Lives here: one module a command group, imported when its command runs. Every dynamic string is escaped where it is shown (`units.printable`).
Must not: decide anything a library user would need too.
"""
