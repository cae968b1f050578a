"""Titles, bullet points and descriptions, put together from a product's facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent_envs.draws import Draws
from agent_envs.webshop.generated.product import Facts
from agent_envs.webshop.generated.words import title, words

# Lengths in characters at the quantiles 0, 5, 25, 50, 75, 95 and 100 % of the public set.
_TITLE = (20, 38, 68, 113, 158, 193, 220)
_DESCRIPTION = (30, 90, 320, 640, 1010, 1730, 2100)
_BULLET = (8, 16, 62, 142, 255, 450, 620)
_AT = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_NO_DESCRIPTION = 0.301
_BULLETS = {1: 70, 2: 20, 3: 55, 4: 130, 5: 545, 6: 90, 7: 50, 8: 40}
_MOST_ON_ONE = 2
"""Sentences on where to use a product, and on its material, in bullet points and description."""
_ONE_STRING = 0.2
"""Share of products with a single bullet point whose points are no list but a string."""


def make_title(facts: Facts, draws: Draws) -> str:
    """Brand, style, material and noun, then as much more as fits into a length drawn."""
    line = facts.line
    length = _length(_TITLE, draws.unit())
    stem = [facts.style, facts.materials[0], facts.noun]
    if line.contains:
        stem = [facts.style, facts.noun]
    if draws.chance(0.25):
        stem.pop(0)
    text = " ".join([facts.brand, *stem])
    seen = set(text.lower().split())
    for piece in _pieces(facts, draws):
        fresh = [word for word in piece.lower().split() if word not in seen]
        if not fresh or len(text) + len(piece) > length + 6:
            continue
        joint = " " if piece.startswith(("for ", "with ", "(")) else draws.choice((", ", ", ", " "))
        text += joint + piece
        seen.update(fresh)
    return text


def _pieces(facts: Facts, draws: Draws) -> Iterator[str]:
    """What titles go on with, in an order of their own for each product."""
    line, parts = facts.line, words().parts
    pieces = [
        f"with {title(name)}" if name in parts else title(name)
        for name in (*facts.wanted, *facts.features[:5])
    ]
    if len(facts.uses) > 1:
        pieces.append(f"for {', '.join(facts.uses[:-1])} and {facts.uses[-1]}")
    pieces.append(f"for {facts.uses[0]}")
    pieces += [f"with {name}" if line.contains else name for name in facts.materials]
    pieces += [noun for noun in line.nouns if noun != facts.noun]
    pieces.append(f"{draws.choice(line.styles)} {line.nouns[0]}")
    pieces += words().general["extras"][line.category]
    if facts.options:
        group, values = draws.choice(facts.options)
        pieces.append(f"({values[0]})" if draws.chance(0.7) else f"{group} {values[0]}")
    elif line.category == "electronics":
        letters = "BCDFGHKLMNPRSTVXZ"
        pieces.append(f"{draws.choice(letters)}{draws.choice(letters)}{100 + draws.below(8900)}")
    return iter(draws.shuffled(pieces))


class Writer:
    """Writes about one product; takes a new sentence each time, as long as there are any."""

    def __init__(self, facts: Facts, draws: Draws) -> None:
        line = facts.line
        self.facts, self.draws = facts, draws
        self.slots = {
            "brand": facts.brand,
            "Brand": facts.brand,
            "BRAND": facts.brand.upper(),
            "noun": facts.noun.lower(),
            "Noun": facts.noun,
            "style": facts.style.lower(),
            "use": facts.uses[0].lower(),
            "Use": facts.uses[0],
            "USE": facts.uses[0].upper(),
            "material": facts.materials[0].lower(),
            "Material": facts.materials[0].capitalize(),
            "MATERIAL": facts.materials[0].upper(),
        }
        general = words().general
        self.about_material = general["with" if line.contains else "of"]
        self.facts_left = draws.some(general["facts"][line.category], 14)
        self.facts_left[6:6] = draws.some(general["facts"]["any"], 10)
        self.uses_left = draws.some(general["use"], _MOST_ON_ONE)
        self.materials_left = draws.some(self.about_material, _MOST_ON_ONE)

    def sentence(self, template: str, **slots: str) -> str:
        """A template with its slots filled in."""
        return template.format_map({**self.slots, **slots} if slots else self.slots)

    def bullets(self) -> list[str]:
        """Bullet points: the attributes that are asked for first, then other things."""
        facts, draws = self.facts, self.draws
        number = draws.from_counts(_BULLETS)
        if facts.wanted:
            number = max(number, len(facts.wanted))
        told = [name for name in facts.attributes if name not in facts.wanted]
        rest = told + [name for name in facts.features if name not in facts.attributes]
        topics = [("attribute", name) for name in facts.wanted]
        others = [*(("attribute", name) for name in rest[:3]), ("use", ""), ("material", "")]
        others += [("fact", "")] * max(2, number - len(topics) - len(others) + 1)
        topics += draws.shuffled(others)[: number - len(topics)]
        if draws.chance(0.5):
            topics = draws.shuffled(topics)
        talkative = draws.unit()
        headings = draws.chance(0.6)
        out = []
        for kind, name in topics[:number]:
            # Bullets of one product are alike in length.
            length = _length(_BULLET, min(1.0, max(0.0, talkative + 0.5 * (draws.unit() - 0.5))))
            out.append(self._bullet(kind, name, length, headings))
        return out

    def _bullet(self, kind: str, name: str, length: float, headings: bool) -> str:
        facts, draws = self.facts, self.draws
        heads, about = words().general["headings"], {}
        if kind == "attribute":
            about = {"Attribute": title(name), "ATTRIBUTE": name.upper()}
            pool = heads["with" if name in words().parts else "is"]
            explained = words().features.get(name)
            said = name in facts.wanted or headings
            if explained is None:  # a material or a use
                sentences = [self._next(kind, ".")]
            else:
                sentences = [self.sentence(draws.choice(explained))]
        else:
            material = "with material" if facts.line.contains else "of"
            pool = heads[material if kind == "material" else kind]
            said, sentences = headings, [self._next(kind, ".")]
        head = self.sentence(draws.choice(pool), **about) if said else ""
        if head and length < 30:
            return head
        text = (f"{head}{draws.choice((': ', ' - ', ': '))}" if head else "") + sentences[0]
        while len(text) < length - 30:
            more = self._next(draws.choice(("fact", "use", "material", "fact")), "")
            if not more:
                break
            text += f" {more}"
        return text

    def _next(self, kind: str, otherwise: str) -> str:
        """A sentence on a topic that has not been used, or one on another topic."""
        left = {"use": self.uses_left, "material": self.materials_left}.get(kind, self.facts_left)
        left = left or self.facts_left or self.uses_left or self.materials_left
        return self.sentence(left.pop()) if left else otherwise

    def description(self) -> str:
        """Running text, or nothing, as for three in ten products."""
        facts, draws = self.facts, self.draws
        general = words().general
        empty, length = draws.chance(_NO_DESCRIPTION), _length(_DESCRIPTION, draws.unit())
        if empty:
            return ""
        body = [
            template
            for name in (*facts.wanted, *facts.features)
            for template in words().features.get(name, ())
        ]
        body += draws.some(general["use"], _MOST_ON_ONE)
        body += draws.some(self.about_material, _MOST_ON_ONE)
        body += general["facts"][facts.line.category]
        body += draws.some(general["facts"]["any"], 8)
        opening, closing = draws.choice(general["open"]), draws.some(general["close"], 2)
        number = 3 + int(length / 40)  # no sentence has fewer than 20 characters
        order = [opening, *draws.some(list(dict.fromkeys(body)), number), *closing]
        return " ".join(_until(length, (self.sentence(template) for template in order)))


def make_bullets(points: Sequence[str], draws: Draws) -> list[str] | str:
    """Bullet points as they stand in raw data: a list, seldom a string."""
    alone = draws.chance(_ONE_STRING)
    return points[0] if len(points) == 1 and alone else list(points)


def _until(length: float, sentences: Iterator[str]) -> Iterator[str]:
    """Sentences up to about so many characters, one at least."""
    used = 0
    for sentence in sentences:
        yield sentence
        used += len(sentence) + 1
        if used > length - 35:
            return


def _length(quantiles: Sequence[float], at: float) -> float:
    """The quantile function that is linear between the given points."""
    for i in range(1, len(_AT)):
        if at <= _AT[i]:
            share = (at - _AT[i - 1]) / (_AT[i] - _AT[i - 1])
            return quantiles[i - 1] + share * (quantiles[i] - quantiles[i - 1])
    return quantiles[-1]
