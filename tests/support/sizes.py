"""Prints the size of the house: files and lines, words of the docs, options of the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from esa_cli.__main__ import make_click_command

ROOT = Path(__file__).parents[2]
CODE = {".py", ".js", ".css", ".html", ".j2", ".jinja"}


def count(paths: Iterable[Path]) -> tuple[int, int]:
    """Files, and their lines."""
    sizes = [len(path.read_bytes().splitlines()) for path in paths]
    return len(sizes), sum(sizes)


def code(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.suffix in CODE]


def words(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text("utf-8").split()) for path in paths)


def commands(group: Any) -> Iterator[Any]:
    """All commands without commands of their own that help shows."""
    for one in getattr(group, "commands", {}).values():
        if not one.hidden:
            yield from commands(one) if hasattr(one, "commands") else [one]


def options(one: Any) -> int:
    shown = (param for param in one.params if param.param_type_name == "option")
    return sum(not param.hidden for param in shown)


def main() -> None:
    package = ROOT / "esa_cli"
    for room in sorted(path for path in package.iterdir() if (path / "__init__.py").is_file()):
        print("  {}: {:,} files, {:,} lines".format(room.name, *count(code(room))))
    print("esa_cli/: {:,} files, {:,} lines".format(*count(code(package))))
    print("tests/: {:,} files, {:,} lines".format(*count(code(ROOT / "tests"))))
    print(f"docs/: {words(sorted((ROOT / 'docs').rglob('*.md'))):,} words")
    readme = (ROOT / "README.md").read_text("utf-8")
    print(
        f"README.md: {len(readme.split()):,} words, {len(readme.split('## More')[0].split()):,}"
        " before More"
    )
    found = list(commands(make_click_command()))
    print(f"commands: {len(found)}, options declared: {sum(map(options, found))}")


if __name__ == "__main__":
    main()
