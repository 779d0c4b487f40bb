"""The command line of `esa`. Commands parse arguments, call the library code and show results."""
