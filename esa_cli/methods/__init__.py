"""Published methods by name, one method a file, and where plugins are loaded.

This file imports nothing: `builtin` names the files whose classes and recipes are registered.
"""
