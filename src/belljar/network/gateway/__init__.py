"""The gateway of one range: answers DNS, HTTP, TLS and raw TCP on sockets it was given, and dials
nobody.

Lives here: the process's I/O. Every verdict is `belljar.network.decide`'s, every bound is
`bounds.Bounds`'s, every answer of a name's is a stand-in's.
"""
