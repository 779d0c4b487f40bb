"""Rules of .gitignore files: which files of a folder are not read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from esa_cli.documents.text_builder import optional_import


class IgnoreRules:
    """Rules of the .gitignore files above a path; the nearest file decides."""

    def __init__(self, root: str) -> None:
        self._specs: dict[str, Any] = {}
        above = Path(root)
        every = (above, *above.parents)
        # Not `Path.exists`, which raises where a folder may not be searched.
        repository = next((p for p in every if os.path.exists(p / ".git")), above)
        for folder in reversed(every):
            if folder.is_relative_to(repository):
                self.enter(str(folder))

    def enter(self, folder: str) -> None:
        try:
            lines = Path(folder, ".gitignore").read_text("utf-8", "replace").splitlines()
        except OSError:
            return
        pathspec = optional_import("pathspec", "pathspec", folder)
        self._specs[folder] = pathspec.GitIgnoreSpec.from_lines(lines)

    def names(self, path: str, *, folder: bool) -> bool:
        verdict = False
        for where, spec in self._specs.items():
            if path.startswith(os.path.join(where, "")):
                inside = os.path.relpath(path, where) + ("/" if folder else "")
                said = spec.check_file(inside).include
                verdict = verdict if said is None else said
        return verdict
