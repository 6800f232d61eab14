"""Model cells. Must not know a harness, or believe a server."""
