"""Readers answer questions from passages, which a model reads as plain text in a short prompt."""
