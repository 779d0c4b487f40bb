"""Attachment of a method to a transformers model: layer traits, cache, hooks and fingerprints."""
