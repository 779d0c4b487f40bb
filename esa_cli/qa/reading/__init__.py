"""Readers answer from passages, each of which is read as plain text in a short new context."""
