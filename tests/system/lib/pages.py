"""The documentation as a test reads it: Markdown pages, the blocks that run, and what their text names.

Conventions, all of them invisible to a reader:

    <!-- runs -->      before a ```sh block: it is run. The blocks of one page share one shell, in their order.
    <!-- runs on the engines -->   the same with Kafka, Redis and NATS underneath, by tests/engines/test_docs.py.
    <!-- runs in a clean Debian -->   the same in one that boots with systemd, by tests/package/test_machine.py.
    <!-- runs in a Debian of its own -->   the same, a section by itself: what is done instead of another one's commands.
    <!-- runs as an operator -->   the same on a small installation, with freshet, psql and systemctl as an operator has them, by
                       test_runbook.py; a section is run by itself.
    <!-- answers -->   before a block behind it: what that run printed. A `…` stands for any text within its line.
"""
import re
from dataclasses import dataclass

FENCE = re.compile(r"^```(\w*)\s*$")
MARK = re.compile(r"^<!-- (runs|runs on the engines|runs in a clean Debian|runs in a Debian of its own|runs as an operator|answers) -->$")
HEADING = re.compile(r"^#+ +(.*?)\s*$", re.M)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")


@dataclass
class Block:
    """One fenced block: its language, text, line number, and its mark ("" = none)."""

    language: str
    text: str
    line: int
    mark: str


class Page:
    def __init__(self, root, path):
        self.root, self.path = root, path
        self.name = path.relative_to(root).as_posix()
        self.text = path.read_text(encoding="utf-8")
        self.blocks, self.prose = self._split()

    def _split(self):
        """Fenced blocks, and the text without them."""
        blocks, prose, block, mark = [], [], None, ""
        for number, line in enumerate(self.text.splitlines(), 1):
            fence, marked = FENCE.match(line), MARK.match(line)
            if block and fence:
                blocks.append(block)
                block, mark = None, ""
            elif block:
                block.text += line + "\n"
            elif fence:
                block = Block(fence[1], "", number, mark)
            elif marked:
                mark = marked[1]
            else:
                assert not mark or not line.strip(), f"{self.name}:{number}: a mark without its block"
                prose.append(line)
        assert block is None and not mark, f"{self.name}: a block or a mark is left open"
        return blocks, "\n".join(prose)

    def examples(self, mark="runs"):
        """[(block that runs, what it must print or None)] in order, of those with this mark."""
        found = []
        for block in self.blocks:
            if block.mark.startswith("runs"):
                assert block.language == "sh", f"{self.name}:{block.line}: only ```sh can run"
                found.append([block, None])
            elif block.mark == "answers":
                assert found and found[-1][1] is None, f"{self.name}:{block.line}: an answer to nothing"
                found[-1][1] = block.text
        return [each for each in found if each[0].mark == mark]

    def under(self, title, mark):
        """The examples with this mark under a heading, up to the next one of its level or above."""
        headings = [(number, line) for number, line in enumerate(self.text.splitlines(), 1)
                    if re.match(r"#+ ", line) and line in self.prose]
        first, level = next((number, line.index(" ")) for number, line in headings if line.lstrip("# ") == title)
        last = next((number for number, line in headings if number > first and line.index(" ") <= level), 1 << 30)
        return [each for each in self.examples(mark) if first < each[0].line < last]

    def names(self):
        """Everything in `backticks`, outside of blocks."""
        return CODE.findall(self.prose)

    def anchors(self):
        """What #fragments of links can lead to, as GitHub makes them."""
        titles = (re.sub(r"[`*]", "", title).lower() for title in HEADING.findall(self.prose))
        return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}

    def broken_links(self):
        for target in LINK.findall(self.prose):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            path = (self.path.parent / file).resolve() if file else self.path
            if not path.exists():
                yield f"{self.name}: {target} leads nowhere"
            elif anchor and anchor not in Page(self.root, path).anchors():
                yield f"{self.name}: {target} has no such heading"


def pages(root):
    """Every page of the project that people read."""
    paths = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), root / "bench" / "README.md"]
    return [Page(root, path) for path in sorted(paths)]


def matches(expected, printed):
    """Line by line, `…` standing for anything; blank lines around do not count."""
    pattern = r"[^\n]*".join(map(re.escape, expected.strip().split("…")))
    return re.fullmatch(pattern, printed.replace("\r\n", "\n").strip()) is not None
