"""Digests of texts, texts that are no Unicode, strict JSON, and YAML of presets."""

from __future__ import annotations

import hashlib
import json
import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_DEPTH = 32
"""Mappings inside each other that an option may ask for."""
_NUMBER_LETTERS = 100
"""Letters of a number in YAML; in base 60 longer ones take quadratic time."""


def text_bytes(text: str) -> bytes:
    """Returns UTF-8, with lone surrogates encoded as three bytes each."""
    return text.encode("utf-8", "surrogatepass")


def text_digest(text: str) -> str:
    """Returns the SHA-256 of a text as 64 hexadecimal digits."""
    return hashlib.sha256(text_bytes(text)).hexdigest()


def has_lone_surrogate(text: str) -> bool:
    """Whether a text has U+D800-U+DFFF, which no tokenizer accepts: they enter through command-line
    arguments that are not UTF-8 or through JSON escapes."""
    return _SURROGATE.search(text) is not None


def without_lone_surrogates(value: Any) -> Any:
    """Returns a text, or an object of JSON, with U+FFFD in place of each lone surrogate."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {name: without_lone_surrogates(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_lone_surrogates(one) for one in value]
    return value


def load_json(text: str) -> Any:
    """Returns the JSON's value. Raises ValueError: the text is malformed, a key is given twice, or
    a number is not finite. RecursionError: the text is nested too deep."""
    return json.loads(
        text,
        object_pairs_hook=_make_object,
        parse_constant=_parse_finite,
        parse_float=_parse_finite,
    )


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is given twice")
    return values


def _parse_finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"a number must be finite, got {digits}")
    return value


@cache
def _strict_loader() -> type[yaml.SafeLoader]:
    """Returns a loader of YAML that refuses duplicate keys, of which YAML's own loader silently
    takes the last, and numbers too long to be printed."""
    import yaml

    class StrictLoader(yaml.SafeLoader):
        def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
            is_number = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
            if is_number and len(node.value) > _NUMBER_LETTERS:
                problem = f"a number must have at most {_NUMBER_LETTERS} letters"
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

    return StrictLoader


def load_yaml(text: str) -> Any:
    """Returns the YAML's value. Raises yaml.YAMLError: the text is malformed, nested too deep, or
    has a duplicate key, or a value that is not of its kind."""
    import yaml

    try:
        return yaml.load(text, _strict_loader())
    except yaml.YAMLError:
        raise
    except Exception as error:
        raise yaml.YAMLError(f"a value is not of its kind: {error}"[:200]) from error


def dump_yaml(data: Any) -> str:
    """Returns the data as YAML, keys in the given order, line breaks of texts as they are."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text.strip() else '"' if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, write_text)
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000)
