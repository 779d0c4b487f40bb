"""Query and key maps trained beforehand, Eq. (5), and the safetensors file that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor

from esa_cli.attention.compression import Linear
from esa_cli.attention.interfaces import Projection
from esa_cli.attention.moments import Moments
from esa_cli.attention.parts import Compressor
from esa_cli.errors import PresetError

_NO_FILE = "set compressor.file to a file of `esa calibrate`"


@dataclass(frozen=True)
class Learned(Compressor):
    """Maps from a safetensors file: `layers.{i}.query_map` and `.key_map`, each (F, R).

    R may differ from layer to layer. `esa calibrate` writes such files.
    """

    file: str

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,)

    @cached_property
    def _contents(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        from safetensors import safe_open
        from safetensors.torch import load_file

        try:
            path = Path(self.file).expanduser()
        except RuntimeError as error:  # ~somebody who is not a user here
            raise PresetError(f"no compressor file {self.file}: {error}", _NO_FILE) from error
        if not path.is_file():
            raise PresetError(f"no compressor file {path}", _NO_FILE)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
            return load_file(path), metadata
        except Exception as error:
            raise PresetError(f"{path} is not a safetensors file: {error}", _NO_FILE) from error

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata; `models.fingerprint` compares it with the model."""
        return self._contents[1]

    def fit(self, layer: int, moments: Moments) -> Projection | None:
        """The file's maps of `layer`.

        Raises:
            PresetError: the file has none, or two of different shapes.
        """
        weights = self._contents[0]
        try:
            pair = [weights[f"layers.{layer}.{name}"] for name in ("query_map", "key_map")]
        except KeyError as error:
            raise PresetError(
                f"{self.file} has no {error.args[0]}", "it was made for another model"
            ) from error
        if pair[0].shape != pair[1].shape or pair[0].ndim != 2:
            shapes = " and ".join(str(tuple(map_.shape)) for map_ in pair)
            raise PresetError(
                f"{self.file}: layer {layer} must have two maps of one shape, got {shapes}",
                "`esa calibrate` writes such files",
            )
        return Linear(*pair)


def save_learned(
    path: str | Path, layers: list[Linear], metadata: dict[str, str] | None = None
) -> None:
    """Writes the file of `Learned`: one pair of maps for each layer, and metadata."""
    from safetensors.torch import save_file

    save_file(map_tensors(layers), str(path), metadata=metadata)


def map_tensors(layers: Sequence[Linear | None]) -> dict[str, Tensor]:
    """The maps as named tensors for safetensors; a layer with None has none."""
    pairs = [(f"layers.{i}", maps) for i, maps in enumerate(layers) if maps is not None]
    named = {f"{name}.query_map": maps.query_map for name, maps in pairs}
    named |= {f"{name}.key_map": maps.key_map for name, maps in pairs}
    # Copies, because safetensors refuses shared tensors, and PCA has one map for both.
    return {name: map_.detach().cpu().clone().contiguous() for name, map_ in named.items()}
