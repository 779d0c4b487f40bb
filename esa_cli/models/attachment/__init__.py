"""What makes a transformers model attend by a method: families, traits, cache, hooks."""
