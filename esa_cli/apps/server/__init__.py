"""The HTTP server of `esa serve` and the Model Context Protocol server of `esa mcp`."""
