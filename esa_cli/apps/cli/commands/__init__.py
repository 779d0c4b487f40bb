"""The commands of `esa`, one file for commands that belong together."""
