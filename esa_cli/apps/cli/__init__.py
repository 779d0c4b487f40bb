"""The command line, one file for each group of commands. Commands parse, call and show."""
