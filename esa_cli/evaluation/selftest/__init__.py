"""Self-tests: facts planted in long texts, asked by several methods; and `esa compare`."""
