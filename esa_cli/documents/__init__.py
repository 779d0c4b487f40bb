"""Files, folders and streams -> text with pages and chapters."""
