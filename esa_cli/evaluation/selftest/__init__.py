"""Self-tests, in which several methods answer questions about planted facts, and `esa compare`."""
