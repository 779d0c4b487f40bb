"""Contains helpers for memory, files, JSON lines, YAML, digests, content words and progress."""
