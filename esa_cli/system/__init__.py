"""Basic helpers: memory, files, JSON lines, YAML, digests, content words and progress callbacks."""
