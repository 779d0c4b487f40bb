"""Ingestion: documents are tokenised, read by the model or indexed, and stored."""
