"""Forward passes of plain text through a model without an attached method."""
