"""The commands of `esa`, which parse arguments, call the library code and show results."""
