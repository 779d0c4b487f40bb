"""The catalogue: one sqlite file of what commands would otherwise scan many files for."""
