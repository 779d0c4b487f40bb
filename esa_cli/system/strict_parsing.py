"""Parses JSON and YAML strictly, so that duplicate keys are errors, and writes YAML."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

MAX_DEPTH = 32
"""How deeply an option may nest mappings."""
_NUMBER_LETTERS = 100
"""The most characters of a number in YAML: a longer number in base 60 takes quadratic time."""


def load_json(text: str) -> Any:
    """Parses JSON strictly. Raises ValueError: the text is malformed, a key occurs twice, or a
    number is not finite. RecursionError: the text is nested too deeply."""
    return json.loads(
        text,
        object_pairs_hook=_refuse_duplicate_keys,
        parse_constant=_parse_finite_number,
        parse_float=_parse_finite_number,
    )


def _refuse_duplicate_keys(key_value_pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(key_value_pairs)
    if len(values) < len(key_value_pairs):
        raise ValueError("a key occurs twice")
    return values


def _parse_finite_number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"a number must be finite, got {digits}")
    return value


@cache
def _make_strict_yaml_loader() -> type[yaml.SafeLoader]:
    """Returns a YAML loader that refuses duplicate keys and numbers too long to be printed. The
    loader of PyYAML would silently use the last value of a duplicate key."""
    import yaml

    class StrictYamlLoader(yaml.SafeLoader):
        def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
            is_number = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
            if is_number and len(node.value) > _NUMBER_LETTERS:
                problem = f"a number must have at most {_NUMBER_LETTERS} characters"
                raise yaml.MarkedYAMLError(None, None, problem, node.start_mark)
            return super().construct_scalar(node)

        def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
            # Not while values are constructed: by then `<<` has added other mappings' keys.
            node = super().compose_mapping_node(anchor)
            seen: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if (key.tag, key.value) in seen:
                        problem = f"{key.value!r} occurs twice"
                        raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
                    seen.add((key.tag, key.value))
            return node

    return StrictYamlLoader


def load_yaml(text: str) -> Any:
    """Parses YAML strictly. Raises yaml.YAMLError: the text is malformed or nested too deeply, a
    key occurs twice, or a value does not match its tag."""
    import yaml

    try:
        return yaml.load(text, _make_strict_yaml_loader())
    except yaml.YAMLError:
        raise
    except Exception as error:
        raise yaml.YAMLError(f"a value does not match its tag: {error}"[:200]) from error


def dump_yaml(data: Any) -> str:
    """Returns data as YAML that keeps the order of keys and the line breaks inside texts."""
    import yaml

    class TextBlockDumper(yaml.SafeDumper):
        pass

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text.strip() else '"' if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    TextBlockDumper.add_representer(str, represent_text)
    return yaml.dump(data, Dumper=TextBlockDumper, sort_keys=False, allow_unicode=True, width=1000)
