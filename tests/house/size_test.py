"""Files up to 500 lines, functions up to 60: what is longer has more than one idea in it."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_FILE, MAX_FUNCTION = 500, 60


def functions(lines):
    """(first line, last line) of every body whose closing brace stands in column 0 or, in a class, in column 2."""
    for indent in ("", "  "):
        opening = None
        for number, line in enumerate(lines, 1):
            starts = line.startswith(indent) and len(line) > len(indent) and not line[len(indent)].isspace()
            if starts and line.endswith("{") and not re.match(r"\s*(namespace|class|struct|enum|extern|union)\b", line):
                opening = number
            elif line.rstrip() == indent + "}" and opening:
                yield opening, number
                opening = None


def problems():
    for folder in ("src", "apps", "tests", "benchmarks", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".h", ".cc", ".py") or "build" in path.parts:
                continue
            lines = path.read_text().splitlines()
            name = path.relative_to(ROOT)
            if len(lines) > MAX_FILE:
                yield f"{name}: {len(lines)} lines (at most {MAX_FILE})"
            if path.suffix == ".py":
                continue
            for first, last in functions(lines):
                if last - first > MAX_FUNCTION:
                    yield f"{name}:{first}: a function of {last - first} lines (at most {MAX_FUNCTION})"


if __name__ == "__main__":
    found = list(problems())
    print("\n".join(found) if found else "sizes: fine")
    sys.exit(1 if found else 0)
