"""Places without doubles, in order, also where a run is continued. No model."""

from __future__ import annotations

from esa_cli.qa.collecting.collection import CollectedPlace, MergedPlaces, WeighedPlace

SENTENCE = 10


def place(start: int, end: int, document: str = "a.txt") -> CollectedPlace:
    return CollectedPlace(
        document, document, None, 1, None, start, end, "w" * (end - start), 1.0, "s", (0, 100)
    )


def weighed(start: int, end: int, weight: float, passage: int = 0, number: int = 0) -> WeighedPlace:
    """A place in sentences of ten characters."""
    first = start // SENTENCE * SENTENCE
    last = -(-end // SENTENCE) * SENTENCE
    found = place(start, end, f"{number}.txt")
    return WeighedPlace(found, number, passage, first, last, weight)


def starts(places: list[WeighedPlace]) -> list[int]:
    return [one.place.start for one in places]


def test_of_places_in_one_sentence_the_likeliest_stays() -> None:
    merged = MergedPlaces()
    for start, weight in ((2, -1.0), (5, -0.5), (7, -3.0), (12, -9.0)):
        merged.add(weighed(start, start + 2, weight))
    assert starts(merged.settled(1, 0)) == [5, 12]


def test_a_place_replaces_several_that_it_shares_sentences_with() -> None:
    merged = MergedPlaces()
    merged.add(weighed(2, 4, -2.0))
    merged.add(weighed(12, 14, -3.0))
    merged.add(weighed(8, 15, -1.0))
    assert starts(merged.settled(1, 0)) == [8]
    merged.add(weighed(102, 104, -2.0))
    merged.add(weighed(112, 114, -0.5))
    merged.add(weighed(108, 115, -1.0))
    assert starts(merged.settled(1, 0)) == [102, 112]


def test_a_place_waits_until_no_passage_can_share_it() -> None:
    merged = MergedPlaces()
    merged.add(weighed(2, 4, -2.0, passage=3))
    merged.add(weighed(25, 27, -2.0, passage=4))
    assert merged.first_waiting == 3
    assert merged.settled(0, 9) == []
    assert starts(merged.settled(0, 10)) == [2]
    assert merged.first_waiting == 4
    merged.add(weighed(26, 28, -1.0, passage=5))
    merged.add(weighed(1, 3, 0.0, passage=5))
    assert starts(merged.settled(0, 30)) == [26], "what was given stays"
    assert merged.first_waiting is None


def test_documents_are_apart_and_in_order() -> None:
    merged = MergedPlaces()
    merged.add(weighed(5, 7, -2.0, number=0))
    merged.add(weighed(2, 4, -1.0, number=1))
    assert starts(merged.settled(1, 0)) == [5]
    assert starts(merged.settled(2, 0)) == [2]


def test_places_of_an_earlier_run_are_not_given_again() -> None:
    merged = MergedPlaces([place(2, 4, "0.txt"), place(15, 17, "0.txt")])
    for start in (3, 12, 16, 25):
        merged.add(weighed(start, start + 2, 0.0))
    merged.add(weighed(3, 5, 0.0, number=1))
    assert starts(merged.settled(2, 0)) == [25, 3]
