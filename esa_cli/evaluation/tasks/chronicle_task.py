"""The chronicle: a long generated document, with or without planted facts.

The chronicle with facts is the demo document, and without facts the long text of self-tests. The
number of words and the seed determine the text on every version of Python. No sentence repeats.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

DEFAULT_WORDS = 27_000
DEFAULT_SEED = 7
# In a shorter text the 48 facts would be so close together that they lose their depths.
MIN_WORDS = 12_000
SLOT = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
# A capital letter in a template means one draw shared by the whole paragraph.
SHARED = {"P": "place", "T": "trade", "O": "thing", "R": "animal", "U": "other", "G": "good"}
NUMBERS = {"small": (3, 9), "mid": (15, 89), "big": (102, 396)}
PRONOUNS = {"women": {"he": "she", "his": "her", "him": "her"}, "men": {}}


@cache
def load_chronicle_material() -> dict[str, Any]:
    """Loads the chronicle's vocabulary, sentence templates and facts."""
    path = Path(__file__).with_name("chronicle_material.json")
    material: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return material


def spell_number(number: int) -> str:
    """Spells a number below one thousand in words."""
    units, tens = load_chronicle_material()["units"], load_chronicle_material()["tens"]
    if number >= 100:
        rest = number % 100
        return f"{units[number // 100]} hundred" + (f" and {spell_number(rest)}" if rest else "")
    if number < 20:
        return str(units[number])
    return f"{tens[number // 10]}-{units[number % 10]}" if number % 10 else str(tens[number // 10])


@dataclass
class Person:
    """A person in the chronicle, with full name at the first mention in a paragraph."""

    first: str
    last: str
    sex: str
    met: bool = False

    def choose_name_or_pronoun(self, form: str) -> str:
        """Returns the form of the person's name, or the pronoun, that a template asks for."""
        if form in ("he", "his", "him") and self.met:
            return PRONOUNS[self.sex].get(form, form)
        if form == "family":
            return self.last
        if self.met:
            return self.last if form == "last" else self.first
        self.met = True
        return f"{self.first} {self.last}" + ("'s" if form == "his" else "")


@dataclass
class Paragraph:
    """A paragraph of the chronicle. A `loose` paragraph lists unrelated pieces of news."""

    sentences: list[str]
    loose: bool = False

    def join_sentences(self) -> str:
        # A letter quoted sentence by sentence becomes one quotation.
        return " ".join(self.sentences).replace("' '", " ")


@dataclass
class SlotValues:
    """The values that the sentence templates of one paragraph share."""

    town: str
    year: int
    people: dict[str, Person] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)


class ChronicleGenerator:
    """Writes the chronicle from sentence templates, and never writes a sentence twice."""

    def __init__(self, seed: int) -> None:
        self.material = material = load_chronicle_material()
        facts = " ".join(fact["fact"].lower() for fact in material["facts"])
        # Counts below ten are too ordinary to give a fact away.
        self.reserved = {number for number in range(10, 100) if spell_number(number) in facts}
        self.rng = random.Random(seed)
        self.decks: dict[str, list[Any]] = {}
        self.seen: set[str] = set()
        self.names: set[str] = set()
        self.vocabulary: dict[str, list[str]] = {**material["vocabulary"]}
        self.vocabulary["other"] = material["towns"]
        for key, joint in (("surname", ""), ("place", " ")):
            heads, tails = material[f"{key}_heads"], material[f"{key}_tails"]
            self.vocabulary[key] = [head + joint + tail for head in heads for tail in tails]

    def draw_integer(self, low: int, high: int) -> int:
        """Draws a random whole number from `low` to `high`, inclusive."""
        # Only random() is guaranteed to be the same in all Python versions.
        return low + int(self.rng.random() * (high - low + 1))

    def draw_from_deck(self, key: str, items: list[Any]) -> Any:
        """Draws an item from a shuffled deck, so that all items are drawn before any repeats."""
        if not (deck := self.decks.setdefault(key, [])):
            deck.extend(items)
            for i in range(len(deck) - 1, 0, -1):
                j = self.draw_integer(0, i)
                deck[i], deck[j] = deck[j], deck[i]
        return deck.pop()

    def draw_person(self) -> Person:
        """Draws a random person whose full name has not been used."""
        sex = "women" if self.rng.random() < 0.5 else "men"
        while True:
            last = self.draw_from_deck("surname", self.vocabulary["surname"])
            # Two deals of the deck bring every first name at least once.
            for _ in range(2 * len(self.material[sex])):
                first = self.draw_from_deck(sex, self.material[sex])
                if first + last not in self.names:
                    self.names.add(first + last)
                    return Person(first, last, sex)

    def fill_template(self, template: str, scene: SlotValues) -> str:
        """Replaces every slot of a sentence template by a word or name."""
        return SLOT.sub(lambda m: self.fill_template_slot(m[1], m[2] or "", scene), template)

    def fill_template_slot(self, key: str, form: str, scene: SlotValues) -> str:
        """Returns the text for one slot of a template: a person, a shared word or a new word."""
        if key in ("A", "B", "C"):
            person = scene.people.get(key) or scene.people.setdefault(key, self.draw_person())
            return person.choose_name_or_pronoun(form)
        if key in SHARED and key not in scene.shared:
            scene.shared[key] = self.draw_word(SHARED[key], scene)
        text = scene.shared[key] if key in SHARED else self.draw_word(key, scene)
        return text.split("|")[-1 if form == "bare" else 0]

    def draw_word(self, key: str, scene: SlotValues) -> str:
        """Draws a random number, year or word of the kind `key`."""
        if key in NUMBERS:
            # A number of a fact must not stand elsewhere, where it would answer the question.
            while (value := self.draw_integer(*NUMBERS[key])) % 100 in self.reserved:
                pass
            return spell_number(value)
        if key in ("town", "year"):
            return str(getattr(scene, key))
        if key == "past":
            return str(scene.year - self.draw_integer(4, 70))
        while (text := self.draw_from_deck(key, self.vocabulary[key])) in (
            scene.town,
            scene.shared.get("T"),
        ):
            pass
        return self.fill_template(text, scene)

    def write_sentence(self, name: str, options: list[str], scene: SlotValues) -> list[str]:
        """Writes a new sentence from one of the templates, or none if each was written before."""
        for _ in range(4 * len(options)):
            template = self.draw_from_deck(name, options)
            met = {key for key, person in scene.people.items() if person.met}
            text = self.fill_template(template, scene)
            text = re.sub(r"[A-Za-z]", lambda m: m[0].upper(), text, count=1)
            if text not in self.seen:
                self.seen.add(text)
                return [text]
            for key, person in scene.people.items():
                person.met = key in met
        return []

    def write_story(self, name: str, slots: list[list[str]], town: str, year: int) -> Paragraph:
        """Writes a paragraph that tells one story from beginning to end."""
        scene = SlotValues(town, year)
        sentences: list[str] = []
        for index, options in enumerate(slots):
            # Some steps are left out, so that stories do not look alike.
            if 2 <= index == len(sentences) and self.rng.random() < 0.3:
                continue
            sentences += self.write_sentence(f"{name} {index}", options, scene)
        return Paragraph(sentences)

    def write_news_paragraph(self, town: str, year: int) -> Paragraph:
        """Writes a paragraph of unrelated pieces of news."""
        sentences = self.write_sentence("intro", self.material["intros"], SlotValues(town, year))
        for _ in range(self.draw_integer(4, 6)):
            sentences += self.write_sentence("note", self.material["notes"], SlotValues(town, year))
        return Paragraph(sentences, loose=True)

    def write_section(self, town: str, year: int) -> list[Paragraph]:
        """Writes the section about one year of one town."""
        kinds = self.material["kinds"]
        blocks = [Paragraph([f"### {town} in {year}"])]
        for turn in range(self.draw_integer(4, 6)):
            # Never two stories in a row, so that a fact can always be planted near its depth.
            if turn % 2 or self.rng.random() < 0.2:
                blocks.append(self.write_news_paragraph(town, year))
            else:
                name = self.draw_from_deck("kind", list(kinds))
                blocks.append(self.write_story(name, kinds[name], town, year))
        return blocks if blocks[-1].loose else [*blocks, self.write_news_paragraph(town, year)]

    def write_sections(self) -> Iterator[list[Paragraph]]:
        """Yields the title and preface, and then the sections about the years of each town."""
        towns, prefixes = self.material["towns"], self.material["town_prefixes"]
        yield [Paragraph([f"# {self.material['title']}"]), Paragraph([self.material["preface"]])]
        for chapter in range(len(towns) * len(prefixes)):
            town = prefixes[chapter // len(towns)] + self.draw_from_deck("chapter", towns)
            year = 410 + self.draw_integer(0, 30)
            description = self.write_story("town", self.material["town_kind"], town, year)
            fresh = [Paragraph([f"## {town}"]), description]
            for _ in range(self.draw_integer(4, 5)):
                yield [*fresh, *self.write_section(town, year)]
                fresh = []
                year += self.draw_integer(7, 31)

    def write_background(self, words: int) -> list[Paragraph]:
        """Writes sections until the chronicle has enough words, and then the closing line."""
        blocks: list[Paragraph] = []
        count = 0
        for section in self.write_sections():
            blocks += section
            count += sum(len(block.join_sentences().split()) for block in section)
            if count >= words:
                return [*blocks, Paragraph([self.material["closing"]])]
        raise ValueError(f"there is not enough material for {words} words")


def generate_chronicle(seed: int) -> Iterator[str]:
    """Yields the paragraphs of the chronicle without facts, about 980,000 words."""
    for section in ChronicleGenerator(seed).write_sections():
        yield from (block.join_sentences() for block in section)


def plant_facts(blocks: list[Paragraph], facts: list[dict[str, Any]]) -> str:
    """Plants every fact between sentences of a paragraph of news, and returns the text."""
    gaps: list[tuple[int, int, int]] = []
    offset = 0
    for index, block in enumerate(blocks):
        start = offset
        for position, sentence in enumerate(block.sentences):
            if block.loose and position >= 2:
                gaps.append((start, index, position))
            start += len(sentence) + 1
        offset += len(block.join_sentences()) + 2
    total = offset + sum(len(fact["fact"]) + 1 for fact in facts)
    added = 0
    for fact in sorted(facts, key=lambda entry: float(entry["depth"])):
        wanted = fact["depth"] * total - added
        gap = min(gaps, key=lambda entry: abs(entry[0] - wanted))
        gaps = gaps[gaps.index(gap) + 1 :]
        blocks[gap[1]].sentences[gap[2] - 1] += " " + fact["fact"]
        added += len(fact["fact"]) + 1
    return "\n\n".join(block.join_sentences() for block in blocks) + "\n"


def build_chronicle(words: int = DEFAULT_WORDS, seed: int = DEFAULT_SEED) -> str:
    """Builds the chronicle with facts, a text of about `words` words."""
    if words < MIN_WORDS:
        raise ValueError(f"the facts need at least {MIN_WORDS} words, got {words}")
    facts: list[dict[str, Any]] = load_chronicle_material()["facts"]
    rest = words - sum(len(fact["fact"].split()) for fact in facts)
    return plant_facts(ChronicleGenerator(seed).write_background(rest), facts)


class RewordedQuestion(NamedTuple):
    """A question of `esa demo`, in other words than the chronicle's, with accepted answers."""

    question: str
    answers: tuple[str, ...]


def get_demo_questions() -> list[RewordedQuestion]:
    """Loads the demo's questions. The chronicle has no answer to the last question."""
    lines = Path(__file__).with_name("demo_questions.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [RewordedQuestion(row["question"], tuple(row["answers"])) for row in rows]


def contains_answer(text: str, answers: Sequence[str]) -> bool:
    """Says whether a text contains one of the accepted answers as whole words."""
    return any(re.search(rf"(?<!\w){re.escape(a)}(?!\w)", text, re.IGNORECASE) for a in answers)
