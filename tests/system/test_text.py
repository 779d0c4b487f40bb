"""Texts that are no Unicode."""

from __future__ import annotations

from esa_cli.system.text import has_lone_surrogate, replace_lone_surrogates


def test_lone_surrogates_are_replaced_wherever_they_are() -> None:
    found = replace_lone_surrogates({"a": ["x\udce9y", {"b": "\ud800"}], "c": 1, "d": None})
    assert found == {"a": ["x\ufffdy", {"b": "\ufffd"}], "c": 1, "d": None}
    assert replace_lone_surrogates("ü😀") == "ü😀"
    assert has_lone_surrogate("a\udfff")
    assert not has_lone_surrogate("\ud7ff\ue000")
