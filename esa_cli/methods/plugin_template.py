"""The first version of a plugin file: a small selector that works, to be changed by its author.

It passes ruff and the conformance suite as it is.
"""

from __future__ import annotations

import re
from pathlib import Path

from esa_cli.errors import PluginError
from esa_cli.methods import part_registry as registry

LONGEST = 32
"""Characters in a name, so that the lines it goes into stay short."""

_SOURCE = '''"""The `@name@` selector: the middle tokens with the largest mean logit.

Check it:  esa plugins check @file@
Use it:    esa ask book.txt "..." --plugin FILE --set answer.from=rows --set selector.name=@name@

A score or a position encoding is registered the same way, in this file or another:
- @register("score", ...): a `Score` with `scores(step)`, which returns (M,) floats, of keys or of
  the words in `step.text`. The selector `topk` then takes the best.
- @register("position", ...): a `PositionEncoding` with a field `distance`,
  `near(local, chunk, start, far)` and `far(at, local, chunk, start)`, which return `Positions`.
docs/plugins.md has all of it on one page.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.methods import Selector, Step, register, top_k


@register("selector", "@name@")
@dataclass(frozen=True)
class @class@(Selector):
    """The `budget` best middle tokens, by the mean over heads and current tokens.

    Args:
        rotate: score them as they will be seen, at the far distance.
    """

    rotate: bool = True

    def select(self, step: Step, budget: int) -> Tensor:
        """(K,) int64 offsets into M: ascending, unique, K <= min(budget, M)."""
        scores = torch.empty(step.middle, device=step.queries.device)
        for offset, logits in step.head_logits(self.rotate):  # (H, C, n)
            scores[offset : offset + logits.shape[2]] = logits.mean(dim=(0, 1))
        return top_k(scores, budget)
'''


def _file_name(name: str) -> str:
    return f"{name.replace('-', '_')}.py"


def template(name: str) -> str:
    """The source of a plugin file that registers a selector `name`.

    Raises:
        PluginError: the name is not one, or a selector has it already.
    """
    if not re.fullmatch(rf"[A-Za-z][A-Za-z0-9_-]{{0,{LONGEST - 1}}}", name):
        raise PluginError(
            f"{name!r} cannot name a method",
            f"a letter, then letters, digits, '-' and '_', {LONGEST} in all at most",
        )
    if name in registry.names("selector"):
        raise PluginError(
            f"there is a selector {name!r} already, from {registry.origin('selector', name)}",
            "choose another name",
        )
    words = [word for word in re.split(r"[-_]", name) if word]
    class_name = "".join(word[0].upper() + word[1:] for word in words)
    if not class_name.endswith("Selector"):
        class_name += "Selector"  # so that no name is one that the file imports
    source = _SOURCE.replace("@name@", name).replace("@file@", _file_name(name))
    return source.replace("@class@", class_name)


def write_template(name: str, folder: str | Path) -> Path:
    """Writes `template(name)` into `folder` and returns the file's path.

    Raises:
        PluginError: the name does not hold, the folder is missing, or the file exists.
    """
    source, path = template(name), Path(folder) / _file_name(name)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(source)
    except FileExistsError as error:
        raise PluginError(f"{path} exists already", "choose another name or folder") from error
    except OSError as error:
        raise PluginError(f"cannot write {path}: {error.strerror}", "give a folder") from error
    return path
