"""Loads tokenizers with or without transformers, fills chat templates, and tokenises long texts."""
