"""An independent reader of pages: Python's own HTML parser, and the rules of the original.

The original takes the text nodes of a page that are in no script, style, head, title or meta, as
Beautiful Soup makes them: blank ASCII text shrinks to a line feed, which is dropped, or to a blank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = frozenset(("br", "circle", "hr", "img", "input", "link", "meta"))
"""Elements of our pages that have no end."""
_SKIPPED = frozenset(("style", "script", "head", "title", "meta"))


@dataclass
class Element:
    """An element: its tag, attributes, and the text directly and indirectly inside."""

    tag: str
    attributes: dict[str, str]
    text: str = ""

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()


@dataclass
class Read(HTMLParser):
    """A page that was read."""

    html: str
    texts: list[str] = field(default_factory=list)
    elements: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[Element] = []
        self.feed(self.html)
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"an attribute twice: {attrs}"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag, "elements are properly nested"

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data
        if self._open and self._open[-1].tag in _SKIPPED:
            return
        if not data.strip(" \n\t\f\r"):
            data = "\n" if "\n" in data else " "
        if data != "\n" and self._open:
            self.texts.append(data)

    @property
    def shown(self) -> str:
        """The page as the original's mode ``text`` shows it."""
        return " [SEP] ".join(text.strip() for text in self.texts)

    def having(self, name: str) -> list[Element]:
        """Elements of a class."""
        return [element for element in self.elements if name in element.classes]

    def named(self, identifier: str) -> Element:
        """The element of an id."""
        (found,) = [e for e in self.elements if e.attributes.get("id") == identifier]
        return found

    @property
    def radios(self) -> list[Element]:
        return [e for e in self.elements if e.attributes.get("type") == "radio"]

    @property
    def clickables(self) -> tuple[str, ...]:
        """What the original offers to click on, in its order."""
        named = [element.text.strip().lower() for element in self.having("btn")]
        named += [element.text.strip().lower() for element in self.having("product-link")]
        return tuple(dict.fromkeys([*named, *(e.attributes["value"] for e in self.radios)]))
