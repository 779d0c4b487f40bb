"""Builds the texts that the pairs in `pairs/` are about, from public repositories at fixed commits.

    python benchmarks/training/texts.py FOLDER

Needs git and, unless `--clones` has them, the network. Each text's hash is compared with that in
its file of pairs. README.md says where the texts come from and what their licences are.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PAIRS = Path(__file__).with_name("pairs")
PLAIN = Path(__file__).with_name("plain_texts.tsv")
"""Books that have no questions; `crops.py` makes some of their sentences."""
PAPERS = Path(__file__).with_name("papers")
"""Papers of offices, clubs, workshops and households, written for this repository."""
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


def part(path: str, first: str, end: str) -> Build:
    """A book from the line that begins with `first` to the one that begins with `end`."""

    def build(repository: Repository) -> str:
        text = repository.text(path)
        start = text.index("\n" + first) + 1
        return text[start : text.index("\n" + end, start) + 1]

    return build


def files(paths: Sequence[str]) -> Build:
    """Some files as they are, one after the other."""
    return lambda repository: "\n\n".join(repository.text(path).strip() for path in paths) + "\n"


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


def statutes(folder: str) -> Build:
    """A title of a code of laws, section by section, without annotations."""

    def build(repository: Repository) -> str:
        index = repository.text(f"{folder}/index.xml")
        names = re.findall(r'href="\./(sections/[^"]+)"', index)
        return "\n".join(statute(repository.text(f"{folder}/{name}")) for name in names)

    return build


def statute(section: str) -> str:
    """A section's number, heading and paragraphs; a paragraph's number stands before its words."""
    section = re.sub(r"<annotations>.*?</annotations>", "", section, flags=re.DOTALL)
    section = re.sub(r"<(?!/?(?:num|heading|text)\b)[^>]*>", "", section)
    found = re.findall(r"<(num|heading|text)[^>]*>(.*?)</\1>", section, re.DOTALL)
    words = [(tag, html.unescape(" ".join(text.split()))) for tag, text in found]
    lines = ["§ " + " ".join(text for _, text in words[:2])]
    line = ""
    for tag, text in words[2:]:
        line += text + " "
        if tag != "num":
            lines.append(line.strip())
            line = ""
    return "\n".join(lines) + "\n"


def articles(pattern: str) -> Build:
    """A law's articles, one file each, in the order of their numbers."""

    def number(path: str) -> list[int]:
        return [int(digits) for digits in re.findall(r"\d+", path)]

    def build(repository: Repository) -> str:
        paths = sorted(repository.paths(pattern), key=number)
        return "\n".join(repository.text(path).strip() + "\n" for path in paths)

    return build


def translated_pages(pattern: str) -> Build:
    """Markdown pages without included files and comments, where a translation has its original."""

    def build(repository: Repository) -> str:
        page = "\n\n".join(repository.text(path) for path in repository.paths(pattern))
        page = re.sub(r"<!--.*?-->|\{\{.*?\}\}", "", page, flags=re.DOTALL)
        page = re.sub(r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", page)
        return re.sub(r"\n\s*\n\s*\n", "\n\n", page).strip() + "\n"

    return build


def proposals(repository: Repository) -> str:
    """Proposals for Python whose authors placed them in the public domain."""
    texts = [repository.text(f"peps/pep-{number:04}.rst") for number in PROPOSALS]
    return "\n\n\n".join(text.strip() for text in texts if PUBLIC in text) + "\n"


PUBLIC = "placed in the public domain"
PROPOSALS = (
    8, 257, 263, 318, 343, 380, 405, 420, 435, 440, 443, 450, 453, 492, 498, 505, 508, 517, 518,
    525, 526, 544, 557, 572, 585, 604, 612, 616, 618, 621, 636, 654, 657, 673, 684, 695, 701, 703,
)  # fmt: skip

MANUAL = (
    "doc/020_installation.rst",
    "doc/030_preparing_a_new_repo.rst",
    "doc/040_backup.rst",
    "doc/045_working_with_repos.rst",
    "doc/047_tuning_parameters.rst",
    "doc/050_restore.rst",
    "doc/060_forget.rst",
    "doc/070_encryption.rst",
    "doc/077_troubleshooting.rst",
    "doc/080_examples.rst",
    "doc/design.rst",
    "doc/faq.rst",
)

CHINESE_LAWS = (
    "社会法/劳动合同法(2012-12-28).md",
    "民法典/婚姻家庭编.md",
    "民法典/继承编.md",
    "民法典/侵权责任编.md",
    "民法典/人格权编.md",
    "经济法/旅游法(2018-10-26).md",
    "经济法/反食品浪费法(2021-04-29).md",
    "经济法/野生动物保护法(2022-12-30).md",
    "行政法/出境入境管理法(2012-06-30).md",
    "宪法相关法/国旗法(2020-10-17).md",
)

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
    "time_zone_database": ("eggert/tz", "b9bc7a87bb7f21576b43541dea9f298462c23bd5", time_zones),
    "news_from_nowhere": (
        "GITenberg/News-from-Nowhere--Or-An-Epoch-of-Rest"
        "--13-Being-Some-Chapters-from-a-Utopian-Romance_3261",
        "79bd67b0ae225cd64f7bbc25c0449850b3131069",
        book("3261.txt"),
    ),
    "jack_sheppard": (
        "GITenberg/Jack-Sheppard--A-Romance_16215",
        "53c2275d68a942a3c29d037179f8b89c9b094c3f",
        book("16215-8.txt"),
    ),
    "little_colonels_hero": (
        "GITenberg/The-Little-Colonel-s-Hero_15122",
        "69e1e7ab1c6c998ea3e46e8b55239fe480b657c4",
        book("15122-8.txt"),
    ),
    "grand_medicine_society": (
        "GITenberg/The-Mide-wiwin-or--Grand-Medicine-Society"
        "--of-the-OjibwaGovernment-Printing-Office-Washington__19368",
        "68d828c2276debb80413c465241cdefa98c1978e",
        book("19368-0.txt"),
    ),
    "log_school_house": (
        "GITenberg/The-Log-School-House-on-the-Columbia_14881",
        "e0989d1c6a67afbfa7716e87df2ab9438020d6d5",
        book("14881-8.txt"),
    ),
    "katrine": (
        "GITenberg/Katrine--A-Novel_14263",
        "cda5284ad5c11e1928cd4c133c0726c1592bea08",
        book("14263-8.txt"),
    ),
    "python_proposals": ("python/peps", "ba4deeb7969588d937da609008d05bb83a47b1ab", proposals),
    "pirates_who_s_who": (
        "GITenberg/The-Pirates-Who-s-WhoGiving-Particulars-Of-The-Lives-and-Deaths"
        "-Of-The-Pirates-And-Buccaneers_19564",
        "cd6507a0ac8d011efc5ac9a9e597f098eb4289ba",
        book("19564-8.txt"),
    ),
    "britannica_broach_to_buddha": (
        "GITenberg/Encyclopaedia-Britannica-11th-Edition-Volume-4-Part-3-Brescia--to--Bulgaria-_19699",
        "38ec09a4e6f4db539a008ecea03ac8697b84025c",
        part("19699-8.txt", "BROACH (", "BUDDHA. "),
    ),
    "trees_of_new_england": (
        "GITenberg/Handbook-of-the-Trees-of-New-England_20467",
        "0ecc25779a278c447e1e5156e62ead72975c4d39",
        book("20467-8.txt"),
    ),
    "district_of_columbia_title_25": (
        "DCCouncil/law-xml",
        "9123af018003a6666851734d92eb3a81862a0f33",
        statutes("us/dc/council/code/titles/25"),
    ),
    "site_policies": (
        "github/site-policy",
        "12992597c5d9d8cfc006693c54b9609d9993bc99",
        pages(r"^Policies/(?!.*(corporate-terms|candidate-privacy)).*\.md$"),
    ),
    "homesteader_letters": (
        "GITenberg/Letters-of-a-Woman-Homesteader_16623",
        "6e558e8de90c8aaffbf9de5d7f622bb171d82250",
        book("16623-8.txt"),
    ),
    "chemical_history_of_a_candle": (
        "GITenberg/The-Chemical-History-of-a-Candle_14474",
        "8e778424cd5462a2d553cc0c5c141846994039f2",
        book("14474-8.txt"),
    ),
    "project_trinity": (
        "GITenberg/Project-Trinity-1945-1946_548",
        "9886aef3408f3abebdaa454299538a4dbd8c1db1",
        book("548.txt"),
    ),
    "transfer_tool_manual": (
        "curl/everything-curl",
        "de1a7e71c7f5999b7e82afa0f8fbceb1c6946978",
        pages(r"^(cmdline|ftp|http|install|project|protocols|usingcurl)/.*\.md$"),
    ),
    "jane_austen_letters": (
        "gutenbergbooks/42078",
        "3180ca1ab03f3a12f56b351af5a0011ecec5dde7",
        book("42078-0.txt"),
    ),
    "council_minutes": (
        "openjs-foundation/cross-project-council",
        "f7426cbe71a9a40180d6607f7d37e45cd22b4921",
        pages(r"^meetings/20(19|20|21|22)/.*\.md$"),
    ),
    "digital_identity_guidelines": (
        "usnistgov/800-63-3",
        "ce8ada6277a2948308d85b16a4c568874f7d5abb",
        pages(r"^sp800-63(-3|a|b|c)/(?!README|cover|errata|.*references).*\.md$"),
    ),
    "roberts_rules_of_order": (
        "GITenberg/Robert-s-Rules-of-Order"
        "Pocket-Manual-of-Rules-of-Order-for-Deliberative-Assemblies_9097",
        "f61746a8a21b3689939e6c572d46b95d0723ca75",
        book("9097.txt"),
    ),
    "handbook_for_boys": (
        "gutenbergbooks/29558",
        "bb36054ae514f4a00ccef3f74b2bfaa5682cbb54",
        part("29558-0.txt", "CAMPCRAFT", "APPENDIX"),
    ),
    "science_in_the_kitchen": (
        "GITenberg/Science-in-the-Kitchen"
        "--13-A-Scientific-Treatise-On-Food-Substances-and-Their-Dietetic-Proper__12238",
        "77fe3f124955df6db5f0696d80f2cdde5ecadc43",
        part("12238-8.txt", "BREAKFAST DISHES", "THE ART OF DINING"),
    ),
    "cloud_service_agreement": (
        "CommonPaper/CSA",
        "4afc1f9d9ebad949a67a9585ed527e19f482492b",
        pages(r"^CSA\.md$"),
    ),
    "sailing_alone": (
        "GITenberg/Sailing-Alone-Around-the-World_6317",
        "e71bb316b10300723a8f8e7dc834cf9eb0fd1cb3",
        book("6317-8.txt"),
    ),
    "donner_party": (
        "GITenberg/History-of-the-Donner-Party--A-Tragedy-of-the-Sierra_6077",
        "cd6fd778689f2b13afd545a220716fdc5e3fcb34",
        book("6077-8.txt"),
    ),
    "short_history_of_scotland": (
        "GITenberg/A-Short-History-of-Scotland_15955",
        "f541a128085dfb4cdd84d869aadd4c9e79368000",
        book("15955.txt"),
    ),
    "general_science": (
        "GITenberg/General-Science_16593",
        "aff47a348fe0d36566aef70d0b64abc6b4ad93f4",
        book("16593-8.txt"),
    ),
    "school_history": (
        "GITenberg/A-School-History-of-the-United-States_11313",
        "83f274e173d03e96e3e2eb43a3de8bd9b8bb62e0",
        part("11313-8.txt", "CHAPTER XIV", "CHAPTER XXX"),
    ),
    "notes_on_nursing": (
        "GITenberg/Notes-on-NursingWhat-It-Is-and-What-It-Is-Not_17366",
        "c8ae7f31b18544dda2d0b53c70558b1402e65884",
        part("17366-8.txt", "I. VENTILATION AND WARMING", "APPENDIX"),
    ),
    "life_of_the_spider": (
        "GITenberg/The-Life-of-the-Spider_1887",
        "cd16f099c16d69fecd5d4bab69393ad856ec92cf",
        book("1887.txt"),
    ),
    "backup_manual": ("restic/restic", "a80be1478a4c537f8396e0db2b05120aa78f11e0", files(MANUAL)),
    "search_tool_guide": (
        "BurntSushi/ripgrep",
        "3fce3b5bb0236da2df6d99672afb8a719642eca7",
        files(("GUIDE.md", "FAQ.md", "CHANGELOG.md")),
    ),
    "maya_the_bee": (
        "gutenbergbooks/21021",
        "6a6d610d780a3510d497203e920f36f113475e14",
        book("21021-0.txt"),
    ),
    "effi_briest": (
        "GITenberg/Effi-Briest_5323",
        "ad711db620a52853f8191bfd1a66e45fda0e51be",
        part("5323-8.txt", "Erstes Kapitel", "Zwanzigstes Kapitel"),
    ),
    "psychopathology_of_everyday_life": (
        "gutenbergbooks/24429",
        "62f8909e9a0f5ce4b51a9bcb88ebdeb108617095",
        book("24429-0.txt"),
    ),
    "experiments_on_plant_hybrids": (
        "gutenbergbooks/40854",
        "a15a52bb6771491cfd46054fc90e4da623e6d5d0",
        book("40854-0.txt"),
    ),
    "german_traffic_and_labour_law": (
        "bundestag/gesetze",
        "77abca2ceea3b7b89ea70afb13b5dd55415eb124",
        files(("s/stvo_2013/index.md", "j/jarbschg/index.md", "b/burlg/index.md")),
    ),
    "german_basic_law": (
        "bundestag/gesetze",
        "77abca2ceea3b7b89ea70afb13b5dd55415eb124",
        book("g/gg/index.md"),
    ),
    "rust_book_in_german": (
        "rust-lang-de/rustbook-de",
        "4aafbc0ebecbb81479c19517a83c414a3212ed5d",
        lambda repository: files(repository.paths(r"^src/ch0[1345789]-.*\.md$"))(repository),
    ),
    "arsene_lupin": (
        "gutenbergbooks/32854",
        "1b4652046a5baff7dd9ba57a4c50506b30d13af8",
        book("32854-0.txt"),
    ),
    "physiologie_du_gout": (
        "gutenbergbooks/22741",
        "cddbb8baf459e5c97935a986493e466cfcd90e48",
        part("22741-0.txt", " " * 29 + "MÉDITATION. I", " " * 28 + "MÉDITATION XIV."),
    ),
    "lettres_persanes": (
        "gutenbergbooks/30268",
        "7a70e6e5a3122f8c557d62260d615340dcf1baf1",
        part("30268-0.txt", "LETTRE I.", "FIN DU TOME PREMIER."),
    ),
    "code_civil": (
        "steeve/france.code-civil",
        "159d0518486cba8b3777c12380ecf1787887fbfc",
        articles(r"^Livre (Ier/Titre (Ier|II|III|IV|V|VI|VII|X)|II/Titre [^/]*)/.*\.md$"),
    ),
    "langage_rust": (
        "Jimskapt/rust-book-fr",
        "7e03466026bfe4afa9ac230009b6ea737e69a140",
        translated_pages(r"^FRENCH/src/ch0[1-9]-.*\.md$"),
    ),
    "trafalgar": (
        "GITenberg/Trafalgar_16961",
        "9016fc6acc4cb38eec421d6ea46dd718a18d9779",
        book("16961-8.txt"),
    ),
    "facundo": (
        "gutenbergbooks/33267",
        "772380a7b062d39d395f4c2c9e3d09f03723dfd9",
        part("33267-0.txt", "CAPÍTULO PRIMERO", "CAPÍTULO VII"),
    ),
    "mexican_constitution": (
        "ceyusa/constitucion-mexicana",
        "e06dea5e7fd085d387dff2e03029b924787d5e1e",
        pages(r"^CPEUM/(0[0-8]\d|12[3-9]|13\d)\.rst$"),
    ),
    "open_source_guides_spanish": (
        "github/opensource.guide",
        "ebc9678e39b55ff5e5c8801d1960904692188e90",
        pages(r"^_articles/es/.*\.md$"),
    ),
    "rust_book_spanish": (
        "RustLangES/rust-book-es",
        "a000a1dde143b3f66baa20582fb173bd184cf9a1",
        pages(r"^src/ch(00|01|02|04|07|14|16|18)-.*\.md$"),
    ),
    "michelet_the_sea_spanish": (
        "gutenbergbooks/26284",
        "9e925ad534f190f943d20d93247065ba314dc4ed",
        part("26284-0.txt", "OJEADA A LOS MARES", "RENACIMIENTO POR EL MAR"),
    ),
    "rulin_waishi": (
        "gutenbergbooks/24032",
        "853e8387a5c2bcede1bc2de5220630278ada0619",
        book("24032-0.txt"),
    ),
    "lu_xun_nahan": (
        "gutenbergbooks/27166",
        "74550fd03215856ee20ce7b8ff101e0018605064",
        book("27166-0.txt"),
    ),
    "chinese_laws": (
        "LawRefBook/Laws",
        "2f4c5c23716267af9dbebbbbd6cbbf732b101981",
        files(CHINESE_LAWS),
    ),
    "open_source_guides_chinese": (
        "github/opensource.guide",
        "ebc9678e39b55ff5e5c8801d1960904692188e90",
        pages(r"^_articles/zh-hans/.*\.md$"),
    ),
    "cooking_guide_chinese": (
        "Anduin2017/HowToCook",
        "cbeb536760320efe24f9a61fe354a318d5887e30",
        pages(r"^(tips|dishes/(aquatic|meat_dish|soup))/.*\.md$"),
    ),
    "shuihu_zhuan": (
        "hexhero/book-txt",
        "b46b8dda733b74f0173757d37a513099c9690173",
        part("水浒传.txt", " 第01回", " 第32回"),
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
    parser.add_argument("--plain", type=Path, help="where books without questions go")
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
        for path in sorted(PAPERS.iterdir()):
            if re.search(given.only, path.stem):
                shutil.copy(path, given.folder)
        if given.plain:
            write_plain_texts(given.plain, given.clones, Path(work))


def write_plain_texts(folder: Path, clones: Sequence[Path], work: Path) -> None:
    """Writes the books that `plain_texts.tsv` lists."""
    folder.mkdir(parents=True, exist_ok=True)
    for line in PLAIN.read_text("utf-8").splitlines()[1:]:
        name, source, commit, path = line.split("\t")
        text = repository(source, commit, clones, work).text(path)
        (folder / f"{name}.txt").write_text(text, "utf-8", newline="\n")
        print(f"{name}: {len(text):,} characters", flush=True)


if __name__ == "__main__":
    main()
