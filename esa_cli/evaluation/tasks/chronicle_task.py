"""Generates the chronicle, a long invented document about towns, with or without planted facts.

The chronicle with facts is the document of `esa demo`, and the chronicle without facts is the text
in which self-tests hide facts. Equal seeds give equal chronicles on all versions of Python."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from esa_cli.system.jsonl import read_json_lines

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
    """Loads the words, sentence templates and facts of which the chronicle is made."""
    path = Path(__file__).with_name("chronicle_material.json")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def spell_number(number: int) -> str:
    """Spells a number from 0 to 999 in words."""
    units, tens = load_chronicle_material()["units"], load_chronicle_material()["tens"]
    if number >= 100:
        rest = number % 100
        return f"{units[number // 100]} hundred" + (f" and {spell_number(rest)}" if rest else "")
    if number < 20:
        return str(units[number])
    return f"{tens[number // 10]}-{units[number % 10]}" if number % 10 else str(tens[number // 10])


@dataclass
class Person:
    """A person in a paragraph of the chronicle."""

    first: str
    last: str
    sex: str
    met: bool = False  # whether the paragraph has mentioned the person by full name

    def choose_name_or_pronoun(self, wanted_form: str) -> str:
        if wanted_form in ("he", "his", "him") and self.met:
            return PRONOUNS[self.sex].get(wanted_form, wanted_form)
        if wanted_form == "family":
            return self.last
        if self.met:
            return self.last if wanted_form == "last" else self.first
        self.met = True
        return f"{self.first} {self.last}" + ("'s" if wanted_form == "his" else "")


@dataclass
class Paragraph:
    """A paragraph of the chronicle as a list of sentences."""

    sentences: list[str]
    loose: bool = False  # whether the paragraph lists unrelated pieces of news

    def join_sentences(self) -> str:
        # A letter quoted sentence by sentence becomes one quotation.
        return " ".join(self.sentences).replace("' '", " ")


@dataclass
class TemplateSlotValues:
    """The values that fill the same slots in all sentence templates of one paragraph."""

    town: str
    year: int
    people: dict[str, Person] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)


class ChronicleGenerator:
    """Writes the chronicle from sentence templates, with no sentence twice."""

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
        # Only random() is guaranteed to be the same in all Python versions.
        return low + int(self.rng.random() * (high - low + 1))

    def draw_without_repeats(self, deck_name: str, items: list[Any]) -> Any:
        """Draws a random item, with no item drawn twice before all items have been drawn once."""
        if not (deck := self.decks.setdefault(deck_name, [])):
            deck.extend(items)
            for i in range(len(deck) - 1, 0, -1):
                j = self.draw_integer(0, i)
                deck[i], deck[j] = deck[j], deck[i]
        return deck.pop()

    def draw_person(self) -> Person:
        sex = "women" if self.rng.random() < 0.5 else "men"
        while True:
            last = self.draw_without_repeats("surname", self.vocabulary["surname"])
            # Two deals of the deck bring every first name at least once.
            for _ in range(2 * len(self.material[sex])):
                first = self.draw_without_repeats(sex, self.material[sex])
                if first + last not in self.names:
                    self.names.add(first + last)
                    return Person(first, last, sex)

    def fill_template(self, template: str, values: TemplateSlotValues) -> str:
        """Replaces the slots of a sentence template, such as {town}, by words or names."""
        return SLOT.sub(lambda m: self.fill_template_slot(m[1], m[2] or "", values), template)

    def fill_template_slot(self, slot: str, slot_form: str, values: TemplateSlotValues) -> str:
        if slot in ("A", "B", "C"):
            person = values.people.get(slot) or values.people.setdefault(slot, self.draw_person())
            return person.choose_name_or_pronoun(slot_form)
        if slot in SHARED and slot not in values.shared:
            values.shared[slot] = self.draw_word(SHARED[slot], values)
        text = values.shared[slot] if slot in SHARED else self.draw_word(slot, values)
        return text.split("|")[-1 if slot_form == "bare" else 0]

    def draw_word(self, word_kind: str, values: TemplateSlotValues) -> str:
        if word_kind in NUMBERS:
            # A number of a fact must not stand elsewhere, where it would answer the question.
            while (value := self.draw_integer(*NUMBERS[word_kind])) % 100 in self.reserved:
                pass
            return spell_number(value)
        if word_kind in ("town", "year"):
            return str(getattr(values, word_kind))
        if word_kind == "past":
            return str(values.year - self.draw_integer(4, 70))
        while (text := self.draw_without_repeats(word_kind, self.vocabulary[word_kind])) in (
            values.town,
            values.shared.get("T"),
        ):
            pass
        return self.fill_template(text, values)

    def write_sentence(
        self, deck_name: str, templates: list[str], values: TemplateSlotValues
    ) -> list[str]:
        """Returns a list with a new sentence from a template, or an empty list if none is new."""
        for _ in range(4 * len(templates)):
            template = self.draw_without_repeats(deck_name, templates)
            met = {key for key, person in values.people.items() if person.met}
            text = self.fill_template(template, values)
            text = re.sub(r"[A-Za-z]", lambda m: m[0].upper(), text, count=1)
            if text not in self.seen:
                self.seen.add(text)
                return [text]
            for key, person in values.people.items():
                person.met = key in met
        return []

    def write_story(
        self, story_kind: str, templates_by_step: list[list[str]], town: str, year: int
    ) -> Paragraph:
        values = TemplateSlotValues(town, year)
        sentences: list[str] = []
        for index, templates in enumerate(templates_by_step):
            # Some steps are left out, so that stories do not look alike.
            if 2 <= index == len(sentences) and self.rng.random() < 0.3:
                continue
            sentences += self.write_sentence(f"{story_kind} {index}", templates, values)
        return Paragraph(sentences)

    def write_news_paragraph(self, town: str, year: int) -> Paragraph:
        intros, notes = self.material["intros"], self.material["notes"]
        sentences = self.write_sentence("intro", intros, TemplateSlotValues(town, year))
        for _ in range(self.draw_integer(4, 6)):
            sentences += self.write_sentence("note", notes, TemplateSlotValues(town, year))
        return Paragraph(sentences, loose=True)

    def write_section(self, town: str, year: int) -> list[Paragraph]:
        kinds = self.material["kinds"]
        blocks = [Paragraph([f"### {town} in {year}"])]
        for turn in range(self.draw_integer(4, 6)):
            # Never two stories in a row, so that a fact can always be planted near its depth.
            if turn % 2 or self.rng.random() < 0.2:
                blocks.append(self.write_news_paragraph(town, year))
            else:
                name = self.draw_without_repeats("kind", list(kinds))
                blocks.append(self.write_story(name, kinds[name], town, year))
        return blocks if blocks[-1].loose else [*blocks, self.write_news_paragraph(town, year)]

    def write_sections(self) -> Iterator[list[Paragraph]]:
        """Yields the chronicle's title and preface, and then sections about each town's years."""
        towns, prefixes = self.material["towns"], self.material["town_prefixes"]
        yield [Paragraph([f"# {self.material['title']}"]), Paragraph([self.material["preface"]])]
        for chapter in range(len(towns) * len(prefixes)):
            town = prefixes[chapter // len(towns)] + self.draw_without_repeats("chapter", towns)
            year = 410 + self.draw_integer(0, 30)
            description = self.write_story("town", self.material["town_kind"], town, year)
            fresh = [Paragraph([f"## {town}"]), description]
            for _ in range(self.draw_integer(4, 5)):
                yield [*fresh, *self.write_section(town, year)]
                fresh = []
                year += self.draw_integer(7, 31)

    def write_text_without_facts(self, min_words: int) -> list[Paragraph]:
        blocks: list[Paragraph] = []
        count = 0
        for section in self.write_sections():
            blocks += section
            count += sum(len(block.join_sentences().split()) for block in section)
            if count >= min_words:
                return [*blocks, Paragraph([self.material["closing"]])]
        raise ValueError(f"the chronicle has too few sentence templates for {min_words} words")


def generate_chronicle_paragraphs(seed: int) -> Iterator[str]:
    """Yields the paragraphs of a chronicle without facts, which has about 980,000 words."""
    for section in ChronicleGenerator(seed).write_sections():
        yield from (block.join_sentences() for block in section)


def plant_facts(paragraphs: list[Paragraph], facts: list[dict[str, Any]]) -> str:
    """Returns the chronicle's text with each fact between two sentences of a paragraph of news."""
    gaps: list[tuple[int, int, int]] = []
    offset = 0
    for index, block in enumerate(paragraphs):
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
        paragraphs[gap[1]].sentences[gap[2] - 1] += " " + fact["fact"]
        added += len(fact["fact"]) + 1
    return "\n\n".join(block.join_sentences() for block in paragraphs) + "\n"


def build_chronicle(word_count: int = DEFAULT_WORDS, seed: int = DEFAULT_SEED) -> str:
    """Builds the text of a chronicle with facts, which has about `word_count` words."""
    if word_count < MIN_WORDS:
        raise ValueError(f"chronicles with facts need at least {MIN_WORDS} words, got {word_count}")
    facts: list[dict[str, Any]] = load_chronicle_material()["facts"]
    rest = word_count - sum(len(fact["fact"].split()) for fact in facts)
    return plant_facts(ChronicleGenerator(seed).write_text_without_facts(rest), facts)


def get_demo_questions() -> list[tuple[str, Sequence[str]]]:
    """Loads the questions of `esa demo`, with the accepted answers; the last question has none."""
    rows = read_json_lines(Path(__file__).with_name("demo_questions.jsonl"))
    return [(row["question"], row["answers"]) for row in rows]


def contains_answer(text: str, answers: Sequence[str]) -> bool:
    """Says whether a text contains one of the accepted answers as whole words."""
    return any(re.search(rf"(?<!\w){re.escape(a)}(?!\w)", text, re.IGNORECASE) for a in answers)
