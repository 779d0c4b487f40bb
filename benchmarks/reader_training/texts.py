"""Builds the texts that the pairs in `pairs/` are about, from public repositories at fixed commits.

    python benchmarks/reader_training/texts.py FOLDER

Needs git and, unless `--clones` has them, the network. Each text's hash is compared with that in
its file of pairs. README.md says where the texts come from and what their licences are.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PAIRS = Path(__file__).with_name("pairs")
HOST = "https://github.com"
NEWS = 160_000
"""Characters of the time zone database's news that are taken: about its last ten years."""


@dataclass(frozen=True)
class Repository:
    """A git repository on GitHub at one commit, and its clone on this machine."""

    name: str
    commit: str
    clone: Path

    def git(self, *arguments: str) -> bytes:
        return subprocess.run(
            ["git", "-C", str(self.clone), *arguments], capture_output=True, check=True
        ).stdout

    def fetch(self) -> None:
        self.clone.mkdir(parents=True)
        self.git("init", "-q")
        self.git("fetch", "-q", "--depth", "1", f"{HOST}/{self.name}.git", self.commit)

    def text(self, path: str) -> str:
        """A file with line feeds; UTF-8 or, in older books, cp1252."""
        content = self.git("show", f"{self.commit}:{path}")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("cp1252")
        return text.replace("\r\n", "\n")

    def paths(self, pattern: str) -> list[str]:
        listed = self.git("ls-tree", "-r", "--name-only", "-z", self.commit).decode().split("\0")
        return sorted(path for path in listed if re.search(pattern, path))


Build = Callable[[Repository], str]


def book(path: str) -> Build:
    return lambda repository: repository.text(path)


def pages(pattern: str) -> Build:
    """All Markdown pages of a site, one after the other."""
    return lambda repository: "".join(
        prose(repository.text(path)) for path in repository.paths(pattern)
    )


def prose(page: str) -> str:
    """A page's title and its words, without templates, pictures, targets of links and tags."""
    if front := re.match(r"---\n.*?\n---\n", page, re.DOTALL):
        title = re.search(r"^title:\s*(.*)$", front[0], re.MULTILINE)
        heading = "# " + title[1].strip('"') + "\n" if title else ""
        page = heading + page[front.end() :]
    page = re.sub(r"\{%.*?%\}|\{#.*?#\}|\{\{.*?\}\}", "", page, flags=re.DOTALL)
    page = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", page)
    page = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    page = html.unescape(re.sub(r"<[^>]+>", "", page))
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n\n"


def time_zones(repository: Repository) -> str:
    """The essay on theory, and the latest news."""
    essay = repository.text("theory.html")
    essay = re.sub(r"<(style|script).*?</\1>", "", essay, flags=re.DOTALL)
    essay = re.sub(r"<[^>]+>", "", essay.replace("<li>", "\n- "))
    essay = re.sub(r"\n{3,}", "\n\n", html.unescape(essay))
    return essay + "\n\n" + repository.text("NEWS")[:NEWS]


TEXTS: dict[str, tuple[str, str, Build]] = {
    "moby_dick": (
        "GITenberg/Moby-Dick--Or-The-Whale_2701",
        "bdf1948e6cd00963730971e5624e764a35f238c3",
        book("2701-0.txt"),
    ),
    "pride_and_prejudice": (
        "GITenberg/Pride-and-Prejudice_1342",
        "81db45c9c48c592f0b77f01fc59e677ad0a5634e",
        book("1342-0.txt"),
    ),
    "great_expectations": (
        "GITenberg/Great-Expectations_1400",
        "889db0e100928a957f469bf834c564d04065c8e6",
        book("1400-0.txt"),
    ),
    "huckleberry_finn": (
        "GITenberg/Adventures-of-Huckleberry-Finn_76",
        "8494afff3a26f95f37376f7a79a014cf818ccaba",
        book("76-0.txt"),
    ),
    "frankenstein": (
        "GITenberg/Frankenstein_84",
        "c98a483bd1f34e7366126b81bcedd1a6faee636e",
        book("84-0.txt"),
    ),
    "war_of_the_worlds": (
        "GITenberg/The-War-of-the-Worlds_36",
        "8b08fa3a7cbef117c80b2b437adc46e75c37dbf0",
        book("36-0.txt"),
    ),
    "tale_of_two_cities": (
        "GITenberg/A-Tale-of-Two-Cities_98",
        "0f6111bc7237af7375295ec1754c2e57e19f67f1",
        book("98-0.txt"),
    ),
    "ancient_art_of_chiriqui": (
        "GITenberg/Ancient-art-of-the-province-of-Chiriqui"
        "-ColombiaGovernment-Printing-Office-Washington-1888-pa__30621",
        "2af9eca74c5a26a9a792f6433429d68842543493",
        book("30621-0.txt"),
    ),
    "how_to_listen_to_music": (
        "GITenberg/How-to-Listen-to-Music-7th-ed.Hints-and"
        "-Suggestions-to-Untaught-Lovers-of-the-Art_17474",
        "ea7589aba5feb585e0983ab0bb8f3f5f582e89c8",
        book("17474-8.txt"),
    ),
    "complete_angler": (
        "GITenberg/The-Complete-Angler-1653_9198",
        "3e96ba0d8cc824b4aaf81f9e8d08dd904996df2b",
        book("9198-8.txt"),
    ),
    "legend_land": (
        "GITenberg/Legend-Land-Vol.-1Railway._20170",
        "e3218eba4088f0960e7fd8298f2c1f773b4f8e9e",
        book("20170-8.txt"),
    ),
    "agency_guides": (
        "18F/guides",
        "debc24b34f23686194d9fe42e391859d569bd39a",
        pages(r"^content/.*\.md$"),
    ),
    "agency_handbook": (
        "18F/handbook",
        "1e4955634d0369f17e5bbc0ebbf8f62e2a3dfe4b",
        pages(r"^pages/.*\.md$"),
    ),
    "time_zone_database": (
        "eggert/tz",
        "b9bc7a87bb7f21576b43541dea9f298462c23bd5",
        time_zones,
    ),
}
"""Name -> repository, commit, and how the text is made from it."""


def expected(name: str) -> str:
    """The hash in the header of a file of pairs."""
    with (PAIRS / f"{name}.jsonl").open(encoding="utf-8") as file:
        return str(json.loads(file.readline())["sha256"])


def repository(name: str, commit: str, clones: Sequence[Path], work: Path) -> Repository:
    """The clone in one of the folders `clones`, else one that is fetched into `work`."""
    folder = name.replace("/", "+")
    for clone in (place for one in clones for place in (one / folder / "repo", one / folder)):
        if clone.is_dir():
            return Repository(name, commit, clone)
    found = Repository(name, commit, work / folder)
    found.fetch()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the texts go")
    parser.add_argument("--only", default="", help="only texts whose name matches")
    parser.add_argument(
        "--clones", type=Path, action="append", default=[], help="folder of clones named OWNER+NAME"
    )
    given = parser.parse_args()

    from esa_cli import read_document

    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        for name, (source, commit, build) in TEXTS.items():
            if not re.search(given.only, name):
                continue
            path = given.folder / f"{name}.txt"
            path.write_text(
                build(repository(source, commit, given.clones, Path(work))), "utf-8", newline="\n"
            )
            text = read_document(str(path)).text
            digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
            if digest != expected(name):
                raise SystemExit(f"{path} is not the text that the pairs are about")
            print(f"{path}: {len(text):,} characters", flush=True)


if __name__ == "__main__":
    main()
