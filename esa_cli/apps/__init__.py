"""Interfaces for people and programs: command line, chat, batch, server."""
