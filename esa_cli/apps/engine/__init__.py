"""Tasks of a command, done by several processes that each have a model."""
