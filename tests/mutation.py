"""Mutation testing: how many small changes of the code do the tests of its folder notice?

    python tests/mutation.py --mutants 40 --seed 1 [--root CHECKOUT]

A seeded draw of mutants from attention, finding, reading and the library. Each runs in a copy of
the checkout, with those test files of its folder that name what its module defines; a mutant that
none notices has survived. Files that need a GPU are left out. `make mutation` calls it.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

FOLDERS = {  # of code and of tests; the first that exist count
    "attention": [("attention", "attention")],
    "finding": [("qa/finding", "qa")],
    "reading": [("qa/reading", "qa")],
    "library": [("storage/library", "storage"), ("library", "library")],
}
NEEDS_GPU = re.compile("cuda|flash|triton|varlen|flex")
FAST = "not model and not process and not training and not families and not gpu and not ray"
COMPARED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
COMPUTED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"}
Mutant = tuple[Path, int, int, str]  # file, first and last byte, the text in place of these


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of annotations and decorators."""
    for name, value in ast.iter_fields(tree):
        if name not in ("annotation", "returns", "decorator_list", "type_params"):
            for node in value if isinstance(value, list) else [value]:
                if isinstance(node, ast.AST):
                    yield node
                    yield from places(node)


def replacement(node: ast.AST) -> str | None:
    show = ast.unparse
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return f"({show(node.left)} {COMPARED[type(node.ops[0])]} {show(node.comparators[0])})"
    if isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
        return f"(({show(node.left)}) {COMPUTED[type(node.op)]} ({show(node.right)}))"
    if isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        return f"({word.join(f'({show(value)})' for value in node.values)})"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"({show(node.operand)})"
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        return repr(not node.value) if isinstance(node.value, bool) else f"({node.value!r} + 1)"
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return "pass" if called or isinstance(node, ast.AugAssign | ast.Raise) else None


def mutants(path: Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    starts = [0, *(match.end() for match in re.finditer(rb"\n", source))]
    for node in places(ast.parse(source)):
        new = replacement(node)
        if new is not None and isinstance(node, ast.expr | ast.stmt):
            first = starts[node.lineno - 1] + node.col_offset
            last = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            changed = source[:first] + new.encode() + source[last:]
            try:  # in an f-string, say, the place is not the text
                if ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)):
                    yield path, first, last, new
            except SyntaxError:
                pass


def tests_of(path: Path, folder: Path) -> list[Path]:
    """Test files that name the module or what it defines, those with most of it first."""
    tree = ast.parse(path.read_bytes())
    defined = [one.name for one in tree.body if isinstance(one, ast.ClassDef | ast.FunctionDef)]
    words = re.compile(r"\b(?:" + "|".join([path.stem, *defined]) + r")\b")
    files = sorted(folder.rglob("test_*.py"))
    counts = {file: len(words.findall(file.read_text("utf-8"))) for file in files}
    return sorted((file for file in files if counts[file]), key=lambda file: -counts[file]) or files


def passes(root: Path, files: list[Path], limit: float | None = None) -> bool:
    """Whether the tests pass in the copy, within the limit in seconds."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", FAST]
    try:
        done = subprocess.run(
            [*command, *map(str, files)], cwd=root, timeout=limit, capture_output=True, check=False,
            env=environment | {"ESA_LIBRARY": f"{root}.library"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode in (0, 5)  # 5: every test was left out


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--mutants", type=int, default=40, help="in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60, help="no mutant begins after these")
    options, begun = parser.parse_args(), time.monotonic()
    draw, limits, drawn = random.Random(options.seed), dict[Path, float](), []
    killed: dict[str, list[bool]] = {name: [] for name in FOLDERS}
    with tempfile.TemporaryDirectory(prefix="mutation") as place:
        root = Path(place) / "checkout"
        ignored = shutil.ignore_patterns(".*", "build", "dist", "shared", "__pycache__")
        shutil.copytree(options.root, root, ignore=ignored)
        for name, layouts in FOLDERS.items():
            known = [(root / "esa_cli" / code, root / "tests" / test) for code, test in layouts]
            code, tests = next(pair for pair in known if pair[0].is_dir() and pair[1].is_dir())
            files = [file for file in sorted(code.rglob("*.py")) if not NEEDS_GPU.search(file.stem)]
            every = [one for file in files for one in mutants(file)]
            drawn += [(name, tests, one) for one in draw.sample(every, options.mutants // 4)]
        draw.shuffle(drawn)  # so that whatever the time allows is of all folders
        for name, folder, (path, first, last, new) in drawn:
            if time.monotonic() - begun > 60 * options.minutes:
                break
            tested, source = tests_of(path, folder), path.read_bytes()
            if path not in limits:
                start = time.monotonic()
                assert passes(root, tested), f"tests of {path.stem} fail without any mutation"
                limits[path] = 30 + 3 * (time.monotonic() - start)
            write(path, source[:first] + new.encode() + source[last:])
            killed[name].append(not passes(root, tested, limits[path]))
            write(path, source)
            print("killed" if killed[name][-1] else "SURVIVED", path.relative_to(root), end=" ")
            print(source.count(b"\n", 0, first) + 1, source[first:last], "->", new, flush=True)
    for name, results in killed.items():
        print(f"{name}: {sum(results)} of {len(results)} killed")
    results = [one for some in killed.values() for one in some]
    print(f"score: {sum(results)} of {len(results)}, seed {options.seed}")


if __name__ == "__main__":
    main()
