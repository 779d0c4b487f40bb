"""A conversation about documents: turns, commands, line editor and saved transcripts."""
