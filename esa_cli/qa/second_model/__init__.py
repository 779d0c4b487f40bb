"""Other models that word answers from the passages that were found: on a server, or here."""
