"""Forward passes of plain text through a model that nothing is attached to."""
