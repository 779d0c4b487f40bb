"""esa: answers questions about documents many times longer than a language model's context."""

__version__ = "0.1.0"
