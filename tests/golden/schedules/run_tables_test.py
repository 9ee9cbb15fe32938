"""Every table that PyTorch's pipelining made is run by the trainer, as parallel.schedule = "FILE.csv", and trains as the
plain loop does.

    run_tables_test.py LOCKSTEP_BINARY
"""

import json
import pathlib
import re
import subprocess
import sys

LOCKSTEP = sys.argv[1]
HERE = pathlib.Path(__file__).resolve().parent
CONFIG = HERE.parents[2] / "configs" / "verify.toml"
SETTINGS = ("train.global_batch=16", "train.microbatch=1", "train.steps=2", "train.warmup_steps=0", "model.layers=6")


def verify(table):
    ranks, microbatches, chunks = re.fullmatch(r".*_K(\d+)_M(\d+)(?:_v(\d+))?", table.stem).groups()
    layout = f"pp{ranks}" + (f"-v{chunks}" if chunks else "") + f"-acc{microbatches}"
    settings = [word for setting in (*SETTINGS, f"parallel.schedule={table}") for word in ("--set", setting)]
    result = subprocess.run([LOCKSTEP, "verify", CONFIG, "--layouts", layout, "--json", *settings],
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, (table.name, result.stdout, result.stderr)
    return json.loads(result.stdout)["layouts"][0]


if __name__ == "__main__":
    tables = sorted((HERE / "pytorch_orders").glob("*.csv"))
    assert len(tables) == 40, tables
    worst = max(verify(table)["max_rel_grad"] for table in tables)
    print(f"{len(tables)} tables of PyTorch's trained; worst gradient {worst:.1e}")
    for table in sorted((HERE / "pytorch_orders" / "invalid").glob("*.csv")):
        result = subprocess.run([LOCKSTEP, "verify", CONFIG, "--layouts", "pp2", "--set", f"parallel.schedule={table}"],
                                capture_output=True, text=True, timeout=60)
        assert result.returncode == 2 and result.stderr.startswith("error: parallel.schedule = "), (table.name, result.stderr)
        assert result.stderr.count("\n") == 1, result.stderr
