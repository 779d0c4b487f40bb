"""Tokenizers: loaded, replaced without transformers, and applied to long texts."""
