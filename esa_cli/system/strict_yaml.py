"""YAML as presets use it: no key given twice, no code, line breaks written so that they are seen.

Knows nothing about presets.
"""

from __future__ import annotations

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, where YAML's own loader takes the last in silence."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here and not while values are made: by then `<<` has put other mappings' keys in.
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    problem = f"{key.value!r} is given twice"
                    raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
                seen.add((key.tag, key.value))
        return node


def strictly(text: str) -> Any:
    """What the YAML says.

    Raises:
        yaml.YAMLError: it is malformed, or gives a key twice.
        ValueError: as from YAML's own loader.
    """
    return yaml.load(text, _Loader)


class _Dumper(yaml.SafeDumper):
    """Writes line breaks so that a reader sees them, where YAML's own dumper doubles each."""


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text.strip() else '"' if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write_text)


def written(data: Any) -> str:
    """The data as YAML, keys in their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
