"""Words of docstrings, comments and pages: few phrases hide the subject, and all lines fit."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from package_files import ROOT, modules, nodes

_MAX_MARKERS = 0.5  # per 1000 words
_MAX_COLUMNS = 100
# Phrases without a subject, or with a person in place of a thread, a worker or a caller.
_MARKERS = re.compile(
    r"\b(?:nobody|somebody|whoever|whomever|anew|of then|for ever|lest|as far as|so many"
    r"|goes on|go on|went on|gone on|going on|judged?s?|judging|hires?|hired|tells|told|rests"
    r"|(?:stands|stood)(?! for| in for)|(?:is|are|was|were) to be"
    r"|(?<!there )(?:is|are|was|were|be) none|(?:for|of|to|by|from) (?:him )?who\b|for whom"
    r"|what (?:comes|stands|follows|others|becomes|remains))\b",
    re.IGNORECASE,
)
# Words that the text of the code does without.
_NEVER = re.compile(
    r"\b(?:nobody|somebody|anybody|whoever|whomever|whom|whatever|anew|lest|twins?|for ever"
    r"|so many|as far as|go(?:es|ing|ne)? on|went on|pass(?:ed|es|ing)? over (?!the\b)"
    r"|beg[aiu]ns? again|(?:leaves?|left|leaving) out|of which there|lies)\b",
    re.IGNORECASE,
)
# Words that have a shorter or clearer equivalent everywhere.
_REFUSED = re.compile(
    r"\b(?:nobody|somebody|anybody|whoever|whomever|anew|lest|for ever|of then)\b", re.IGNORECASE
)
_OPENINGS = re.compile(r"(What|Whether|Where|How|Who)\b")
_NOUNS = re.compile(r"(The|A|An|That|Those|Its|Of|In|For|As|If)\b|``")
_MAX_NOUNS = 0.02  # of the functions
_QUESTIONS = re.compile(r"#+ (What|Whether|Where|How|Who|Whose|When|Why)\b")
_CODE = re.compile(r"``[^`]*``|`[^`]*`")


@cache
def files() -> list[Path]:
    """The Python files of the repository."""
    found = {*modules().values()}
    for folder in ("tests", "benchmarks", "examples", "docs", ".ci"):
        found |= {*(ROOT / folder).rglob("*.py")}
    return sorted(found)


def pages() -> list[Path]:
    """The pages in Markdown."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@cache
def docstrings(path: Path) -> list[ast.Constant]:
    """The docstrings of a file, as nodes of its syntax tree."""
    found = []
    for node in nodes(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                found.append(first.value)
    return found


@cache
def lines_of(path: Path) -> list[tuple[int, str]]:
    """The lines of docstrings and comments of a file with their numbers, without examples."""
    return [*_lines_of(path)]


def _lines_of(path: Path) -> Iterator[tuple[int, str]]:
    lines = path.read_text().splitlines()
    for node in docstrings(path):
        is_example = False  # up to the next empty line
        for i in range(node.lineno, (node.end_lineno or 0) + 1):
            line = lines[i - 1].strip()
            is_example = line.startswith(">>>") or (is_example and line != "")
            if not is_example:
                yield i, lines[i - 1]
    for i, line in enumerate(lines, 1):
        if line.strip().startswith("# "):
            yield i, line
        elif (start := line.find("  # ")) > 0 and not line[start:].startswith(
            ("  # type:", "  # noqa")
        ):
            yield i, line[start:]


def lines_of_page(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page outside of code, with their numbers."""
    is_code = False
    for i, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield i, line


def test_few_phrases_hide_the_subject():
    num_words, found = 0, []
    texts = [(path, lines_of(path)) for path in files() if path != Path(__file__)]
    for path, lines in [*texts, *((page, lines_of_page(page)) for page in pages())]:
        for i, line in lines:
            plain = _CODE.sub("", line)
            num_words += len(re.findall(r"[A-Za-z']+", plain))
            found += [
                f"{path.relative_to(ROOT)}:{i}: {match[0]}" for match in _MARKERS.finditer(plain)
            ]
    assert num_words > 100_000
    assert 1000 * len(found) < _MAX_MARKERS * num_words, "\n".join(found)


def test_the_code_has_no_such_words():
    found = [
        f"{path.relative_to(ROOT)}:{i}: {match[0]}"
        for path in files()
        if path != Path(__file__)
        for i, line in lines_of(path)
        for match in _NEVER.finditer(_CODE.sub("", line))
    ]
    assert not found, "\n".join(found)


def test_refused_words_are_nowhere():
    own = Path(__file__)
    drawings = (ROOT / "docs").rglob("*.svg")
    found = [
        f"{path.relative_to(ROOT)}:{i}: {match[0]}"
        for path in [*files(), *pages(), *sorted(drawings)]
        if path != own
        for i, line in enumerate(path.read_text().splitlines(), 1)
        if (match := _REFUSED.search(line))
    ]
    assert not found, "\n".join(found)


def test_titles_are_no_clauses():
    lines = [(page, *line) for page in pages() for line in lines_of_page(page)]
    found = [
        f"{page.relative_to(ROOT)}:{i}: {line}" for page, i, line in lines if _QUESTIONS.match(line)
    ]
    assert sum(line.startswith("#") for *_, line in lines) > 500
    assert not found, "\n".join(found)


def test_docstrings_begin_with_a_noun_or_a_verb():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {str(node.value)[:60]}"
        for path in files()
        for node in docstrings(path)
        if _OPENINGS.match(str(node.value))
    ]
    assert not found, "\n".join(found)


def test_docstrings_of_functions_begin_with_a_verb():
    texts = {
        f"{path.relative_to(ROOT)}:{node.lineno}": ast.get_docstring(node)
        for path in modules().values()
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef)
        and "property" not in " ".join(map(ast.unparse, node.decorator_list))
    }
    texts = {place: text for place, text in texts.items() if text}
    found = [f"{place}: {text[:60]}" for place, text in texts.items() if _NOUNS.match(text)]
    assert len(texts) > 2000
    assert len(found) < _MAX_NOUNS * len(texts), "\n".join(found)


def test_docstrings_and_comments_fit_in_the_columns():
    found = [
        f"{path.relative_to(ROOT)}:{i}"
        for path in files()
        for i, line in lines_of(path)
        if len(line) > _MAX_COLUMNS
    ]
    assert not found, "\n".join(found)
