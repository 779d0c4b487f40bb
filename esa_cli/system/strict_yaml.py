"""YAML of presets: no duplicate keys, no code, and readable line breaks."""

from __future__ import annotations

from typing import Any

import yaml

MOST_DEEP = 32
"""Mappings inside each other that an option may ask for."""


MOST_LETTERS = 100
"""Of a number; in base 60 longer ones take quadratic time."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, of which YAML's own loader silently takes the last, and numbers too
    long to be printed."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        if node.tag in _NUMBERS and len(node.value) > MOST_LETTERS:
            problem = f"a number must have at most {MOST_LETTERS} letters"
            raise yaml.MarkedYAMLError(None, None, problem, node.start_mark)
        return super().construct_scalar(node)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Not while values are constructed: by then `<<` has added other mappings' keys.
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    problem = f"{key.value!r} is given twice"
                    raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
                seen.add((key.tag, key.value))
        return node


def load_yaml(text: str) -> Any:
    """The YAML's value. Raises yaml.YAMLError: it is malformed, nested too deep, or has a duplicate
    key, or a value that is not of its kind."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError:
        raise
    except Exception as error:
        raise yaml.YAMLError(f"a value is not of its kind: {error}"[:200]) from error


class _Dumper(yaml.SafeDumper):
    """Writes line breaks as they are, where YAML's own dumper doubles each."""


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text.strip() else '"' if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write_text)


def dump_yaml(data: Any) -> str:
    """The data as YAML, keys in the given order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
