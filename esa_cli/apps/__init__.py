"""The interfaces for people and programs: the command line, chat, batch runs and the servers."""
