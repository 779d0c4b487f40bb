"""The files of models and their origins: the hub, Python wheels, folders and GGUF files."""
