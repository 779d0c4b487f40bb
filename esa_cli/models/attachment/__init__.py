"""Attaches an attention method to a transformers model: KV cache, hooks and model fingerprints."""
