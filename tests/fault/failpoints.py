"""The names of all failpoints, as the source has them."""
import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent / "src"
CALL = re.compile(r'\bFAILPOINT\("([^"]*)"\)')
NAME = re.compile(r"[a-z]+\.[a-z_]+")


def places():
    """[(name, file)] in the order of files."""
    return [(name, path.relative_to(SOURCE).as_posix()) for path in sorted(SOURCE.rglob("*.c"))
            for name in CALL.findall(path.read_text(encoding="utf-8"))]


def names():
    return sorted({name for name, _ in places()})


def names_of(*parts):
    """Those whose first word is one of these."""
    return {name for name in names() if name.split(".")[0] in parts}


def reached(server):
    """How often a server of this test came to each failpoint that it was armed with."""
    found = re.findall(r'"event":"failpoint_reached".*?"failpoint":"([^"]*)"', server.log())
    return {name: found.count(name) for name in set(found)}
