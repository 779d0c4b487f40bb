"""A file of collected places that a stopped run continues. Shows nothing."""
