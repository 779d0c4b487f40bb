"""A model's tokenizer: loaded, kept without transformers, and used on long texts."""
