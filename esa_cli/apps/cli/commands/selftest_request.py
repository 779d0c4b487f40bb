"""The options of `esa selftest` as one object, their checks, and the header of its results file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.options import output_paths as files
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.options.shard_options import WHOLE, ShardOptions
from esa_cli.apps.cli.run_facts import run_facts
from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks import TASKS, Haystack, find_task
from esa_cli.evaluation.tasks.task_sample import SUFFIXES
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.preset import Preset
from esa_cli.system.text import text_digest

if TYPE_CHECKING:
    from esa_cli.apps.cli.model_choice.known_model import ModelPlace
    from esa_cli.evaluation.selftest.run_plan import SelftestSettings


@dataclass(frozen=True)
class SelftestRequest:
    """Options of `esa selftest`."""

    settings: SelftestSettings
    model: ModelOptions
    haystack: Path | None = None
    minutes: float | None = None
    out: Path | None = None
    report: Path | None = None
    png: Path | None = None
    as_json: bool = False
    shards: ShardOptions = WHOLE


def check(request: SelftestRequest, chosen: Preset) -> Haystack:
    """Names, lengths, texts and files, before anything is loaded; the haystack."""
    settings = request.settings
    if not settings.tests or not settings.methods:
        raise UsageError(
            "TEST and --methods must each name one, got none", f"tests: {', '.join(TASKS)}"
        )
    for test in settings.tests:
        find_task(test)
    for name in settings.methods:
        resolved_preset.compared(name, chosen, max(settings.lengths))
    if "own" in settings.tests and request.haystack is None:
        raise UsageError(
            "--haystack must be a text of yours for the test own, got none", "add --haystack FILE"
        )
    _check_files(request)
    given, seed = request.haystack, settings.seed
    return Haystack.chronicle(seed) if given is None else Haystack.read(str(given))


def _check_files(request: SelftestRequest) -> None:
    """Checks that files can be written and drawn, and take no other file's place.

    Raises:
        UsageError, DocumentError.
    """
    from esa_cli.evaluation.report.figures import require_matplotlib

    written = {"--out": request.out, "--report": request.report, "--png": request.png}
    texts = _texts(request.haystack)
    for option, path in written.items():
        files.check(option, path)
        files.spare(option, path, texts, "one of the texts of --haystack")
    files.apart(written)
    for option in ("--png", "--report"):
        if written[option] is not None:
            require_matplotlib(option)


def _texts(haystack: Path | None) -> list[str]:
    """The files that --haystack reads."""
    if haystack is None or not haystack.is_dir():
        return [] if haystack is None else [str(haystack)]
    return [str(path) for path in haystack.iterdir() if path.suffix.lower() in SUFFIXES]


def header(
    request: SelftestRequest, chosen: Preset, haystack: Haystack, place: ModelPlace
) -> dict[str, Any]:
    from esa_cli.evaluation.selftest.run_plan import dense_length

    settings = asdict(request.settings)
    text = text_digest(haystack.text)[:16] if haystack.text else None
    kept = {key: settings[key] for key in ("depths", "samples", "seed", "reading", "exact")}
    return {
        **run_facts(),
        "model": chosen.model,
        "preset": chosen.name,
        "context": chosen.context,
        "dense_length": dense_length(chosen),
        "settings": {
            **kept,
            "haystack": haystack.name,
            "haystack_hash": text,
            "dtype": place.dtype_name,
        },
        "preset_settings": chosen.model_dump(exclude={"name", "description"}),
    }
