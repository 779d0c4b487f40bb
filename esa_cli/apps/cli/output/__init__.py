"""Prints answers, passages, tables and progress on the terminal or as JSON."""
