"""Ingestion tokenises documents, prefills or indexes them, and stores the result."""
