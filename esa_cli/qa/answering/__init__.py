"""Encodes prompts, generates answers from the KV cache of documents, and defines replies."""
