"""Model cells: a model server with its weights in a cell without a network device.

Lives here: the weights store, server presets, HTTP over the channel, the life of a model cell.
Must not: know a harness; believe a server.
"""
