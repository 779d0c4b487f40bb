"""The machine: memory, files, JSON lines, YAML, digests and progress callbacks."""
