"""Estimates the memory and time of indexing or prefilling documents."""
