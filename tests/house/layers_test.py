"""Folders are layers: an include line may name only what the folder's row in src/lockstep/CMakeLists.txt allows."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "lockstep"
TORCH = re.compile(r'#include [<"](torch|ATen|c10)/')
INCLUDE = re.compile(r'#include "lockstep/([a-z_]+)/')
# Read where programs start, and nowhere else.
ENVIRONMENT = re.compile(r"\b(std::)?(getenv|secure_getenv)\(")
DUMPS = {"utils", "util", "common", "core", "misc", "helpers"}


def declared_layers():
    """folder -> (may use libtorch, folders it may include)"""
    layers = {}
    text = (SOURCE / "CMakeLists.txt").read_text()
    for name, rest in re.findall(r"lockstep_layer\((\w+)([^)]*)\)", text):
        words = rest.split()
        deps = set()
        if "DEPS" in words:
            for word in words[words.index("DEPS") + 1 :]:
                if word == "PRIVATE_PACKAGES":
                    break
                deps.add(word)
        layers[name] = ("TORCH" in words, deps | {"base", name})
    return layers


def problems():
    layers = declared_layers()
    for path in sorted(SOURCE.rglob("*")):
        if path.is_dir() and path.name in DUMPS:
            yield f"{path.relative_to(ROOT)}: no dumps; name the folder after what lives there"
        if path.suffix not in (".h", ".cc"):
            continue
        folder = path.relative_to(SOURCE).parts[0]
        if folder not in layers:
            yield f"{path.relative_to(ROOT)}: {folder} is not a layer of src/lockstep/CMakeLists.txt"
            continue
        uses_torch, allowed = layers[folder]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{path.relative_to(ROOT)}:{number}"
            found = INCLUDE.match(line)
            if found and found.group(1) not in allowed:
                yield f"{where}: {folder} may not include {found.group(1)} (allowed: {', '.join(sorted(allowed))})"
            if TORCH.match(line) and not uses_torch:
                yield f"{where}: {folder} may not include libtorch"
            if ENVIRONMENT.search(line) and folder != "launch" and not path.name.endswith("_test.cc"):
                yield f"{where}: environment variables are read in launch/ and apps/ only"


if __name__ == "__main__":
    assert len(declared_layers()) >= 7, "src/lockstep/CMakeLists.txt was not understood"
    found = list(problems())
    print("\n".join(found) if found else "layers: fine")
    sys.exit(1 if found else 0)
