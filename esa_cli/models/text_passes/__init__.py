"""Runs models on plain text, without an attached attention method, and generates answers."""
