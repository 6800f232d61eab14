"""Stand-ins: simulated endpoints, one module or package a kind, each with `make(context)` and `check(settings, directory)`."""
