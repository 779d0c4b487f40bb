"""A conversation about documents: its turns, and how it is kept. Knows no screen and no model."""
