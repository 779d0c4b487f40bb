"""What attaching changes in a model, so that it can be changed back."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle


def copy_configs(model: nn.Module) -> list[tuple[Any, Any]]:
    """Replaces modules' configurations by copies; returns the modules with the originals.

    Modules may share a configuration, also with other models; only one about attention is copied.
    """
    modules: Sequence[Any] = list(model.modules())
    found = [
        (module, module.config)
        for module in modules
        if hasattr(getattr(module, "config", None), "_attn_implementation")
    ]
    copies = {id(config): copy.deepcopy(config) for _, config in found}
    for module, config in found:
        module.config = copies[id(config)]
    return found


def restore(
    body: Any,
    rotary: nn.Module | None,
    configs: Sequence[tuple[Any, Any]],
    hooks: Sequence[RemovableHandle] = (),
) -> None:
    """Restores the rotary module and the configurations of `copy_configs`, and removes hooks."""
    if rotary is not None:
        body.rotary_emb = rotary
    for module, config in configs:
        module.config = config
    for hook in hooks:
        hook.remove()
