"""Tokenizers: loading with or without transformers, chat templates, and long texts."""
