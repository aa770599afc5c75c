"""A parser for pieces of HTML that asserts that they are well formed."""

from html.parser import HTMLParser

_VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.tags = [], []
        self.text = self.styles = ""
        self.rows = []  # of tables, the texts of their cells
        self.titles = []  # of pictures and boxes
        html.encode()
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs)
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "title":
            self.titles.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["style"]:
            self.styles += data
        elif self.open[-1:] == ["title"]:
            self.titles[-1] += data
        else:
            self.text += data + "\n"
            if {"td", "th"} & set(self.open):
                self.rows[-1][-1] += data

    def named(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]
