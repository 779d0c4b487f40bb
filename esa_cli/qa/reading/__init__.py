"""Answering from passages that are read again as plain text in a short fresh context."""
