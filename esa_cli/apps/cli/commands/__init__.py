"""The commands of `esa`, in files for commands that belong together."""
