"""What sharded states take, against the ledger, and that ZeRO-3 trains where data parallelism does not fit.

    memory_test.py LOCKSTEP MEMORY_PROGRAM [--table]     --table: only prints the table of docs/zero.md
"""

import json
import pathlib
import subprocess
import sys
import tempfile

LOCKSTEP, PROGRAM = sys.argv[1:3]
# Activations small beside states: short sequences, a small vocabulary.
CONFIG = """
[model]
layers = {layers}
hidden = 512
heads = 8
vocab = 64
sequence = 8
[data]
format = "synthetic"
[train]
steps = 3
global_batch = 4
microbatch = 1
[parallel]
bucket_mb = 4
[run]
directory = "{folder}/run"
validate_every = 0
"""
LAYOUTS = {1: ("single", "zero1", "zero2", "zero3"), 2: ("dp2", "dp2-zero1", "dp2-zero2", "dp2-zero3"),
           4: ("dp4", "dp4-zero1", "dp4-zero2", "dp4-zero3")}
LOW = {2: ("dp2-zero1-bf16", "dp2-zero2-bf16", "dp2-zero3-bf16")}
# What is measured: layouts by ranks, and the type of gradients.
MEASURED = ((LAYOUTS, "fp32"), (LOW, "fp32"), (LOW, "model"))


def launch(folder, ranks, mode, layout, *more):
    command = [LOCKSTEP, "launch", "--ranks", str(ranks), "--", PROGRAM, mode, folder / "config.toml", layout, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def answer(result):
    assert result.returncode == 0, result.stderr
    line = next(line for line in result.stdout.splitlines() if "{" in line)
    return json.loads(line[line.index("{"):])


def measure(folder):
    """One micro-batch a rank, so that nothing is held between micro-batches."""
    config = (folder / "config.toml").read_text()
    for layouts_of, gradients in MEASURED:
        for ranks, layouts in layouts_of.items():
            settings = f'global_batch = {ranks}\ngradient_dtype = "{gradients}"'
            (folder / "config.toml").write_text(config.replace("global_batch = 4", settings))
            for layout in layouts:
                name = layout + (", gradients too" if gradients == "model" else "")
                yield name, answer(launch(folder, ranks, "measure", layout))


def print_table(folder):
    print("| layout | states, ledger | with what is lent, ledger | after a step | peak in a step | peak while made |")
    print("|---|---|---|---|---|---|")
    for layout, m in measure(folder):
        megabytes = [f"{m[key] / 1e6:.1f}" for key in ("states", "ledger", "after_step", "peak", "start_peak")]
        print(f"| {layout} | {' | '.join(megabytes)} |", flush=True)


def test_ledger(folder):
    for layout, m in measure(folder):
        error = abs(m["after_step"] / m["ledger"] - 1)
        print(f"{layout}: {m['after_step'] / 1e6:.1f} MB after a step, ledger {m['ledger'] / 1e6:.1f}, {error:.2%}; peak {m['peak'] / 1e6:.1f}")
        assert error <= 0.02, (layout, m)
        widened = 2 * m["params"] if "gradients too" in layout else 0  # fp32, of what each of two ranks updates
        assert m["peak"] <= 1.25 * m["ledger"] + widened, (layout, m)


def test_limit(folder):
    """A data-parallel rank needs 12P bytes of heap, weights and moments, beside 4P of gradients in its arena. Of 4 ranks in
    stage 3 each needs 3P."""
    parameters = answer(launch(folder, 1, "measure", "zero1"))["params"]
    megabytes = 21 * parameters // 2 >> 20
    fits = answer(launch(folder, 4, "limit", "dp4-zero3", str(megabytes)))
    print(f"limit {megabytes} MiB: zero3 trains to a loss of {fits['final_loss']:.3f}, {fits['registered_peak'] / 1e6:.0f} MB of arenas beside")
    assert fits["registered_peak"] + (megabytes << 20) < 16 * parameters, fits
    fails = launch(folder, 4, "limit", "dp4", str(megabytes))
    assert fails.returncode == 1, (fails.returncode, fails.stderr)
    lines = [line for line in fails.stderr.splitlines() if "error" in line]
    assert any("is out of memory: training states take" in line and "with parallel.zero = 3 they take" in line for line in lines), fails.stderr
    assert not any("internal error" in line or "enforce fail" in line for line in fails.stderr.splitlines()), fails.stderr
    print(f"data parallelism: {lines[0]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if "--table" not in sys.argv:
            (folder / "config.toml").write_text(CONFIG.format(layers=16, folder=folder))
            test_limit(folder)
        (folder / "config.toml").write_text(CONFIG.format(layers=6, folder=folder))
        print_table(folder) if "--table" in sys.argv else test_ledger(folder)
