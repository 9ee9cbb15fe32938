"""Builds the examples as projects of their own, against an installed lockstep, and holds them to what they promise.

    examples_test.py BUILD_DIR CXX_COMPILER
"""

import difflib
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, COMPILER = pathlib.Path(sys.argv[1]), sys.argv[2]
PREFIX = BUILD / "examples" / "prefix"


def run(*command):
    result = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    assert result.returncode == 0, f"{command} ended with {result.returncode}:\n{result.stdout}"
    return result.stdout


def build_example(name):
    folder = BUILD / "examples" / name
    run("cmake", "-G", "Ninja", "-S", ROOT / "examples" / name, "-B", folder, f"-DCMAKE_PREFIX_PATH={PREFIX}", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_CXX_COMPILER={COMPILER}", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    run("cmake", "--build", folder)
    return folder


def numbers(path):
    return [float(line) for line in path.read_text().split()]


def largest_difference(expected, actual):
    return max(abs(a - b) for a, b in zip(expected, actual, strict=True))


def changed_lines(name):
    sources = [(ROOT / "examples" / name / file).read_text().splitlines() for file in ("single.cc", "parallel.cc")]
    return [line for line in difflib.unified_diff(*sources, n=0, lineterm="") if line[0] in "+-" and line[:3] not in ("+++", "---")]


def own_module():
    changed = changed_lines("own_module")
    assert 0 < len(changed) <= 10, "\n".join(changed)
    folder = build_example("own_module")
    run(folder / "single", folder / "single.txt")
    expected = numbers(folder / "single.txt")
    assert len(expected) == 8 * 9 + 8 + 16 * 8 * 9 + 16 + 4 * 144 + 4
    for ranks in (1, 2, 4):
        run(PREFIX / "bin" / "lockstep", "launch", "--ranks", ranks, "--", folder / "parallel", folder / "parallel.txt")
        worst = largest_difference(expected, numbers(folder / "parallel.txt"))
        print(f"own_module: {len(changed)} changed lines, {ranks} rank(s), largest difference {worst:.1e}")
        assert worst <= 1e-10


def tensor_parallel():
    changed = changed_lines("tensor_parallel")
    folder = build_example("tensor_parallel")
    run(folder / "single", folder / "single.txt")
    expected = numbers(folder / "single.txt")
    assert len(expected) == 32 * 16
    for ranks in (1, 2, 3):
        run(PREFIX / "bin" / "lockstep", "launch", "--ranks", ranks, "--", folder / "parallel", folder / "parallel.txt")
        worst = largest_difference(expected, numbers(folder / "parallel.txt"))
        print(f"tensor_parallel: {len(changed)} changed lines, {ranks} rank(s), largest difference {worst:.1e}")
        assert worst <= 1e-10


def pipeline():
    folder = build_example("pipeline")

    def weights(name):  # of all stages, which are in files named after their first layers
        files = sorted(folder.glob(f"{name}.*"), key=lambda file: int(file.suffix[1:]))
        values = [value for file in files for value in numbers(file)]
        for file in files:
            file.unlink()
        return values

    run(folder / "single", folder / "weights")
    expected = weights("weights")
    assert len(expected) == 12 * (8 * 8 + 8)
    for kind, chunks in (("naive", 1), ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("looped_bfs", 2)):
        for ranks in (2, 3, 4):
            run(PREFIX / "bin" / "lockstep", "launch", "--ranks", ranks, "--", folder / "parallel", folder / "weights", kind, chunks)
            worst = largest_difference(expected, weights("weights"))
            print(f"pipeline: {kind}, {ranks} ranks with {chunks} stage(s), largest difference {worst:.1e}")
            assert worst <= 1e-10


def deep_mlp():
    folder = build_example("deep_mlp")
    width, layers, ranks, microbatches = 64, 12, 4, 8
    weights, biases, activation = layers * width * width, layers * width, 128 * width * 8
    output = run(PREFIX / "bin" / "lockstep", "launch", "--ranks", ranks, "--", folder / "deep_mlp", width)
    rows = {words[1]: [float(word) for word in words[2:]] for words in map(str.split, output.splitlines()) if words[1] in ("batch", "width", "depth")}
    state, sent, calls, difference = ({name: row[column] for name, row in rows.items()} for column in range(4))
    whole_bias = biases // 2  # of layers cut by their inputs
    assert state == {"batch": 16 * (weights + biases), "width": 16 * ((weights + biases // 2) // ranks + whole_bias), "depth": 4 * (weights + biases)}, output
    all_reduce, all_gather = 2 * (ranks - 1) / ranks, ranks - 1
    # Width: two layers need one sum forward and one backward, but the input needs no gradient. Depth: activations come
    # and gradients go; ranks agree on the step in nine words.
    assert sent["width"] == all_reduce * 11 * activation and calls["width"] == 11, output
    assert sent["depth"] == 2 * activation + all_gather * 9 * 8 and calls["depth"] == 2 * microbatches + 1, output
    assert sent["batch"] == all_reduce * 8 * (weights + biases + 2 * layers) and calls["batch"] == 1, output  # and a flag a parameter
    assert max(difference.values()) <= 1e-10, output
    print(f"deep_mlp:\n{output.strip()}")


def linear_model():
    folder = build_example("linear_model")
    output = run(PREFIX / "bin" / "lockstep", "launch", "--ranks", 4, "--", folder / "linear_model")
    assert "ranks 4, steps 100" in output, output
    print(output.strip())


if __name__ == "__main__":
    run("cmake", "--install", BUILD, "--prefix", PREFIX)
    own_module()
    tensor_parallel()
    pipeline()
    deep_mlp()
    linear_model()
