"""Answering: prompts, the session that generates answers, and replies."""
