"""Reading of a folder's documents by the model, which is loaded when there is one to read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import DiskError, DocumentError, ResourceError
from esa_cli.storage.library import FileRecord, Library

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa
    from esa_cli.qa.presets.preset import Preset


class FolderReading:
    """Reads documents into the library.

    Args:
        stack: ends the model.
    """

    def __init__(
        self,
        chosen: Preset,
        options: ModelOptions,
        library: Library,
        reporter: Reporter,
        stack: ExitStack,
    ) -> None:
        self._chosen, self._options, self._library = chosen, options, library
        self._reporter, self._stack = reporter, stack
        self._esa: Esa | None = None

    def read(self, records: Sequence[FileRecord]) -> tuple[list[str], list[FileRecord]]:
        """Reads files whose text is not in the library. Ids of what was read, and the records of
        those that could not be, with why. Raises DiskError, PresetError, ModelError."""
        known = self._library.text_digests()
        ids, failed = list[str](), list[FileRecord]()
        for record in records:
            if record.digest in known:
                continue
            known.add(record.digest)
            try:
                entry = self._loaded().ingest(record.path).entry
                ids += [entry.id] if entry else []
            except DiskError:
                raise
            except (DocumentError, ResourceError) as error:
                failed.append(record._replace(why=error.message, hint=error.hint))
        return ids, failed

    def _loaded(self) -> Esa:
        if self._esa is None:
            from esa_cli.apps.cli.model_choice.open_esa import opened

            self._esa = self._stack.enter_context(
                opened(
                    self._chosen, self._options, self._reporter, keep=True, library=self._library
                )
            )
        return self._esa
