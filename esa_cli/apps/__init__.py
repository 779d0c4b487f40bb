"""What people and programs talk to: command line, chat, batch, server."""
