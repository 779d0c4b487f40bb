"""One file a command of `esa`."""
