"""Answering: a question, its prompt, the session that generates, and the reply."""
