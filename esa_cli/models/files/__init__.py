"""Where a model's files come from: the hub, a wheel, a folder, and what is kept of them."""
