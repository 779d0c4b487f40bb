"""The options that several commands share, and the layout of their help."""
