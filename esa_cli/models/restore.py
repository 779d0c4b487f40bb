"""What attaching changes on a host model, remembered so that it can be put back.

Modules may share one configuration, or have their own; each gets back the very object it had. Knows
nothing about methods, and holds no attachment: it is what runs when one is gone.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn


def own_configs(model: nn.Module) -> list[tuple[Any, Any]]:
    """Gives modules copies of their configurations; every module with the one it had before.

    Other models may have been built from the same objects. Those that say nothing of attention
    stay as they are.
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


def put_back(body: Any, rotary: nn.Module, configs: Sequence[tuple[Any, Any]]) -> None:
    """The host's rotary module and the configurations of `own_configs`."""
    body.rotary_emb = rotary
    for module, config in configs:
        module.config = config
