"""HTML as a tree, read strictly: a tag that is not closed in its place is an error."""

from html.parser import HTMLParser
from xml.etree.ElementTree import Element, TreeBuilder

VOID = {"meta", "img", "wbr"}


def parse(html: str) -> Element:
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open, f"never closed: {reader.open}"
    return reader.builder.close()


def text(element: Element) -> str:
    """What a reader sees, with spaces and line breaks as one space."""
    return " ".join("".join(element.itertext()).split())


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.builder = TreeBuilder()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> repeats an attribute"
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in VOID:
            self.builder.end(tag)
        else:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.builder.end(tag)

    def handle_data(self, data):
        if self.open:
            self.builder.data(data)
