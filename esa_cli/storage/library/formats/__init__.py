"""Formats: the library's files, their names and their checksums."""
