"""A made-up world of people, works, companies, cities and countries, and questions about it over several hops.

Invariants:

- Nothing is stored: entity i of a kind, its name and its facts are functions of (world seed, kind, i), so that a world
  of a million passages needs no memory and no time to create.
- Names are unique. Each entity has one passage, which contains exactly the facts about it.
- Every relation leads to exactly one entity or value, so a question has one answer: "What is the language of the
  country of the birthplace of Ada Moro?" follows birthplace, country, language.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, cast

from squelch.envs.retrieval import Passage
from squelch.envs.search_qa.questions import Question
from squelch.envs.wording import choose
from squelch.kit.records.splits import MAX_DRAWS, Split, split_of, task_key_of
from squelch.kit.untrusted.text import own_yaml

Kind = Literal["person", "work", "company", "city", "country"]
SHARES: dict[Kind, float] = {"work": 0.3, "company": 0.12, "city": 0.15, "country": 0.03}  # the rest are people
MIN_PASSAGES = 100
WORLD_VERSION = 1
"""Increase it with every change of names or facts, so that indices of older worlds are not used."""
VALUE_RATE = 0.7  # probability that a question asks for one of few values, which a guess can hit

_WORDS: Any = own_yaml(Path(__file__).with_suffix(".yaml"))
_FIRST, _ADJECTIVES, _FIRMS = (_WORDS[name].split() for name in ("first", "adjectives", "firms"))
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvzhj" for vowel in "aeiou"]
_MASK = 2**64 - 1
_STRIDE = 2654435761  # coprime to the number of syllables, so that neighbours get dissimilar names


@dataclass(frozen=True)
class Relation:
    """A relation from a subject to another entity of kind `target`, or to one of `values`."""

    name: str
    target: Kind | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entity:
    """One entity, which has a passage of its own."""

    kind: Kind
    index: int


RELATIONS: dict[Kind, tuple[Relation, ...]] = {
    kind: tuple(
        Relation(name, values=tuple(to)) if isinstance(to, list) else Relation(name, to) for name, to in found.items()
    )
    for kind, found in _WORDS["relations"].items()
}


@dataclass(frozen=True)
class World:
    """The world of a seed, with `size` passages."""

    seed: int
    size: int

    @property
    def identity(self) -> str:
        """The identity of this world's index."""
        return f"{WORLD_VERSION} {self.seed} {self.size}"

    @cached_property
    def counts(self) -> dict[Kind, int]:
        """Entities of each kind, in the order of their passages."""
        counts: dict[Kind, int] = {kind: max(2, int(share * self.size)) for kind, share in SHARES.items()}
        return {"person": self.size - sum(counts.values()), **counts}

    def entity(self, row: int) -> Entity:
        """The entity of a passage, 0 <= row < size."""
        for kind, count in self.counts.items():
            if row < count:
                return Entity(kind, row)
            row -= count
        raise IndexError(f"row {row} beyond a world of {self.size} passages")

    def name(self, entity: Entity) -> str:
        """The entity's name, which is unique."""
        index = entity.index
        if entity.kind == "person":
            return f"{_FIRST[index % len(_FIRST)]} {self._word('person', index // len(_FIRST))}"
        if entity.kind == "work":
            return f"The {_ADJECTIVES[index % len(_ADJECTIVES)]} {self._word('work', index // len(_ADJECTIVES))}"
        if entity.kind == "company":
            return f"{self._word('company', index // len(_FIRMS))} {_FIRMS[index % len(_FIRMS)]}"
        return self._word(entity.kind, index) + ("ton" if entity.kind == "city" else "nia")

    def follow(self, entity: Entity, relation: Relation) -> Entity | str:
        """The entity or value to which the relation leads."""
        if relation.target is None:
            return relation.values[self._draw(entity, relation.name, len(relation.values))]
        countries = self.counts["country"]
        if relation.name == "country":
            return Entity("country", entity.index % countries)
        if relation.name == "capital":
            return Entity("city", entity.index)  # there are more cities than countries, and city i is in country i
        return Entity(relation.target, self._draw(entity, relation.name, self.counts[relation.target]))

    def passage(self, entity: Entity) -> Passage:
        """The passage about the entity."""
        name = self.name(entity)
        facts = [f"{r.name} {self.describe(self.follow(entity, r))}." for r in RELATIONS[entity.kind]]
        return Passage(f"{entity.kind}-{entity.index}", name, f"{name} is a {entity.kind}. {' '.join(facts)}")

    def passages(self) -> Iterator[Passage]:
        """All `size` passages."""
        for row in range(self.size):
            yield self.passage(self.entity(row))

    def describe(self, target: Entity | str) -> str:
        """The name of an entity, or the value itself."""
        return target if isinstance(target, str) else self.name(target)

    def _word(self, kind: Kind, index: int) -> str:
        """A name of two syllables, or of three in a world too large for that; distinct for distinct indices."""
        length = 2 if self.size <= len(_SYLLABLES) ** 2 else 3
        code = (index * _STRIDE + _mix(self.seed ^ hash_text(kind))) % len(_SYLLABLES) ** length
        parts = [_SYLLABLES[code // len(_SYLLABLES) ** k % len(_SYLLABLES)] for k in range(length)]
        return "".join(parts).capitalize()

    def _draw(self, entity: Entity, relation: str, count: int) -> int:
        """A uniform number below `count`, which depends on the fact only."""
        base = _mix(self.seed ^ hash_text(f"{entity.kind} {relation}"))
        return _mix(base + entity.index) % count


@cache
def hash_text(text: str) -> int:
    """64 bits of the text's digest; the texts are the few names of kinds and relations."""
    return int(task_key_of("world", text)[:16], 16)


def _mix(value: int) -> int:
    """SplitMix64's finaliser (Steele et al. 2014): neighbouring integers become unrelated ones, in [0, 2^64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


@lru_cache(maxsize=4096)
def generate(world: World, seed: int, split: Split, min_hops: int, max_hops: int) -> Question:
    """The question of `seed`: chains are drawn until one belongs to `split` and visits no entity twice."""
    rng = random.Random(f"SearchQA {seed}")
    for _ in range(MAX_DRAWS):
        hops = min_hops + int(rng.random() * (max_hops - min_hops + 1))
        question = _draw(world, rng, hops)
        if question is not None and split_of(question.key) == split:
            return question
    raise ValueError(
        f"environment.options: SearchQA found no {split} question in {MAX_DRAWS} draws from a world of {world.size} "
        f"passages with {min_hops} to {max_hops} hops; enlarge num_passages"
    )


def _draw(world: World, rng: random.Random, hops: int) -> Question | None:
    """A question over that many relations; None if the chain visits an entity twice."""
    subject = world.entity(int(rng.random() * world.size))
    visited, asked = [subject], []
    for _ in range(hops - 1):
        relation = choose(rng, [r for r in RELATIONS[visited[-1].kind] if r.target])
        asked.append(relation.name)
        visited.append(cast(Entity, world.follow(visited[-1], relation)))  # the relation has a target
    is_value = rng.random() < VALUE_RATE
    last = choose(rng, [r for r in RELATIONS[visited[-1].kind] if bool(r.values) == is_value])
    answer = world.follow(visited[-1], last)
    if len(set(visited)) < len(visited) or answer in visited:
        return None
    asked.append(last.name)
    chain = " of ".join(f"the {name}" for name in reversed(asked))
    text = f"What is {chain} of {world.name(subject)}?"
    names = tuple(world.name(entity) for entity in visited)
    key = task_key_of("SearchQA", f"{world.seed} {world.size} {text}")
    return Question(text, world.describe(answer), names, key, tuple(asked), last.values or names)
