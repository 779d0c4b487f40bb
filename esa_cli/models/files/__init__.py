"""Where a model comes from, and what its files say: the hub, wheels, folders and GGUF files."""
