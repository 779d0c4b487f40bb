"""Answers questions about documents; `api.Esa` is the interface to this package."""
