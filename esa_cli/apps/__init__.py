"""The interfaces of `esa` for people and programs: command line, chat, batch runs and servers."""
