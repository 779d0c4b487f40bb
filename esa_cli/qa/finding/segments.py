"""How a document is divided for the encoders of token indexes."""

SEGMENT_TOKENS = 512
"""Tokens of a document that are encoded together."""
CONTEXT_TOKENS = 64
"""Tokens before a segment that its own ones see."""
