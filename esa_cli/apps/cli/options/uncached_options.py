"""Options of the model for commands that ask about no documents."""

from __future__ import annotations

from dataclasses import dataclass

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions


@dataclass(frozen=True)
class UncachedOptions:
    """`ModelOptions` without --cache: no keys and values of documents are kept."""

    preset: options.Preset = options.DEFAULT_PRESET
    model: options.Model = None
    settings: options.Set = None
    plugins: options.Plugin = None
    device: options.Device = "auto"
    dtype: options.Dtype = "auto"

    def model_options(self) -> ModelOptions:
        """The same with a cache where the model is."""
        return ModelOptions(
            self.preset, self.model, self.settings, self.plugins, self.device, self.dtype, "device"
        )
