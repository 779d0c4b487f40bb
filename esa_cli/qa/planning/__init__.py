"""Memory and time that an ingest takes."""
