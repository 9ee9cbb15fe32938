"""A bf16 run from end to end: layouts against the plain loop, training, fp32 weights saved, sampling, going on from them.

    low_precision_test.py LOCKSTEP_BINARY
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

LOCKSTEP = sys.argv[1]
CONFIG = pathlib.Path(__file__).resolve().parents[1] / "configs" / "verify.toml"
SMALL = ["--set", "model.layers=2", "--set", "model.hidden=32", "--set", "model.heads=4"]


def lockstep(*arguments):
    result = subprocess.run([LOCKSTEP, *map(str, arguments), *SMALL[: 0 if arguments[0] == "generate" else None]],
                            capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, (arguments, result.stderr)
    return json.loads(result.stdout)


def header(file):
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length])


def check_layouts():
    names = ("{0},dp2-{0},dp2-fixed_tree-{0},dp2-recompute_full-fixed_tree-{0},zero1-{0},dp2-zero1-{0},dp2-zero2-{0},dp2-zero3-{0},"
             "dp4-zero3g2-{0},dp3-zero2-acc4-{0},dp2-zero3-recompute_full-{0},dp2-tp2-zero2-{0},dp2-tp2-sp-zero3-{0}")
    for precision in ("bf16", "fp16"):
        layouts = names.format(precision)
        rows = lockstep("verify", CONFIG, "--layouts", layouts, "--precision", "fp64", "--json")["layouts"]
        assert len(rows) == 13 and all(row["pass"] for row in rows), rows
        assert all(row["bitwise"] for row in rows if row["name"] == precision or "fixed_tree" in row["name"]), rows
        print(f"{precision}: worst loss {max(row['max_rel_loss'] for row in rows):.1e}, "
              f"worst gradient {max(row['max_rel_grad'] for row in rows):.1e}")


def check_run(folder, zero):
    first, second = folder / f"first{zero}", folder / f"second{zero}"
    common = ["--json", "--ranks", 2, "--set", "train.precision=bf16", "--set", "train.warmup_steps=0",
              "--set", f"parallel.zero={zero}"]
    lockstep("train", CONFIG, *common, "--set", f"run.directory={first}")
    tensors = header(first / "weights" / "model.safetensors")
    assert {tensor["dtype"] for name, tensor in tensors.items() if name != "__metadata__"} == {"F32"}, tensors
    assert len(lockstep("generate", "--run", first, "--prompt", "1,2,3", "--tokens", "5", "--json")["tokens"]) == 5
    # From the saved weights, with other initial values and a learning rate that moves nothing: the loss of every step is
    # that of the trained model, and the weights saved again are the same bytes.
    lockstep("train", CONFIG, *common, "--set", f"run.directory={second}", "--set", f"model.weights={first / 'weights'}",
             "--set", "train.lr=1e-60", "--set", "train.weight_decay=0")
    saved = [(run / "weights" / "model.safetensors").read_bytes() for run in (first, second)]
    assert saved[0] == saved[1], "masters were not those of the loaded weights"


if __name__ == "__main__":
    check_layouts()
    with tempfile.TemporaryDirectory() as temporary:
        for zero in range(4):
            check_run(pathlib.Path(temporary), zero)
