"""Model cells: a model server with its weights in a cell without a network device. Must not know a
harness, or believe a server.
"""
