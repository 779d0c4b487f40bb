"""Tokenises documents, computes their KV caches or token indexes, and stores the results."""
