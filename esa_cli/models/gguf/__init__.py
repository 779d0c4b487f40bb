"""Models in GGUF files: their settings and weights as transformers has them."""
