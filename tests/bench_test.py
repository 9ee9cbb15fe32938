"""lockstep bench collectives: every operation on 1, 2 and 3 ranks of every backend has no wrong value and the fields that others
read; tuning, drawing and the table that comes out.

    bench_test.py LOCKSTEP_BINARY
"""

import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

LOCKSTEP = sys.argv[1]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n"]
# Bus over algorithm bandwidth, for p ranks.
FACTORS = {
    "all_reduce": lambda p: 2 * (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "all_gather": lambda p: (p - 1) / p,
    "broadcast": lambda p: 1,
    "reduce": lambda p: 1,
    "scatter": lambda p: (p - 1) / p,
    "gather": lambda p: (p - 1) / p,
    "all_to_all": lambda p: (p - 1) / p,
    "sendrecv": lambda p: 1,
}
FIELDS = {"op", "backend", "bytes", "count", "dtype", "algorithm", "time_us", "algbw_GBps", "busbw_GBps", "wrong"}
QUICK = ["-n", "3", "-w", "1"]


def bench(*arguments, launcher=()):
    command = [*launcher, LOCKSTEP, "bench", "collectives", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


def document(*arguments, launcher=()):
    return json.loads(bench(*arguments, "--json", launcher=launcher))


def check_row(row, ranks):
    assert FIELDS <= set(row), row
    assert row["wrong"] == 0 and row["time_us"] > 0 and row["ranks"] == ranks, row
    assert math.isclose(row["algbw_GBps"], row["bytes"] / row["time_us"] * 1e-3, rel_tol=1e-9), row
    assert math.isclose(row["busbw_GBps"], row["algbw_GBps"] * FACTORS[row["op"]](ranks), rel_tol=1e-9), row
    in_blocks = row["op"] in ("reduce_scatter", "all_gather", "scatter", "gather", "all_to_all")
    element = {"f32": 4, "bf16": 2, "f64": 8}[row["dtype"]]
    assert row["bytes"] == row["count"] * element * (ranks if in_blocks else 1), row


def every_operation(backends, ranks):
    sizes = ["-b", "4", "-e", "300K", "-f", "64"]
    rows = document("--op", "all", "--ranks", str(ranks), "--backend", ",".join(backends), *sizes, *QUICK)["rows"]
    for row in rows:
        check_row(row, ranks)
    for backend in backends:
        for op in FACTORS:
            own = [row for row in rows if row["op"] == op and row["backend"] == backend]
            assert [row["in_place"] for row in own] == ([False] * 3 if op == "sendrecv" else [False, True] * 3), own
            assert own[0]["bytes"] >= 4 and own[-1]["bytes"] >= 16384, own
    print(f"{ranks} ranks: {len(rows)} rows over {', '.join(backends)}, no value wrong")


def types_and_reductions():
    for dtype, reduction in (("double", "max"), ("bfloat16", "avg"), ("f32", "min")):
        for row in document("--ranks", "3", "--backend", "in_process", "-d", dtype, "-o", reduction, "-e", "1K", *QUICK)["rows"]:
            check_row(row, 3)


def fit_describes_the_times():
    result = document("--ranks", "2", "--backend", "in_process", "-b", "4", "-e", "8M")
    assert set(result["fit"]) == {"alpha_us", "bandwidth_GBps"} and result["fit"]["bandwidth_GBps"] > 0, result["fit"]
    assert {row["bound_by"] for row in result["rows"]} <= {"start-up", "bandwidth", "skew"}
    assert all(row["predicted_us"] > 0 and row["skew_us"] >= 0 for row in result["rows"])
    long = [row for row in result["rows"] if row["copy_fraction"] is not None]
    assert long and all(row["bytes"] >= 4 << 20 and row["in_place"] for row in long)
    assert all(0 < row["copy_fraction"] for row in long) and result["copy_GBps"]["in_process"] > 0


def under_mpirun():
    rows = document("--op", "all_gather,sendrecv", "-e", "1K", *QUICK, launcher=[*MPIRUN, "3"])["rows"]
    assert rows and all(row["backend"] == "mpi" for row in rows)
    for row in rows:
        check_row(row, 3)


def algorithms_and_their_table():
    rows = document("--op", "all_reduce", "--ranks", "3", "--algorithm", "all", "-e", "4K", *QUICK)["rows"]
    assert {"native", "ring", "direct", "binomial_tree"} <= {row["algorithm"] for row in rows}
    for row in rows:
        check_row(row, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "table")
        tuned = document("--op", "all_reduce,broadcast", "--tune", "--output", str(path), "--ranks", "2", "-e", "64K", *QUICK)
        lines = path.read_text().splitlines()
        assert path.read_text() == tuned["table"]
        assert {line.split()[0] for line in lines if line.split()[2] == "2..2"} == {"all_reduce", "broadcast"}, lines
        assert len(lines) == len(set(lines)) and all(line.split()[1] == "one_host" for line in lines), lines
        assert {row["op"] for row in tuned["rows"] if row["algorithm"] == "auto"} == {"all_reduce", "broadcast"}


def pictures():
    text = bench("--show", "ring", "--ranks", "4")
    assert "ring all_reduce, 4 ranks" in text and "0 ==3==> 1" in text, text
    assert "6 rounds; the busiest rank sends 1.5 S in 6 messages, all ranks together 6 S" in text, text
    shown = document("--show", "pairwise", "--op", "all_to_all", "--ranks", "4")
    assert shown["busiest_rank_sends"] == 0.75 and shown["all_ranks_send"] == 3 and shown["rounds"] == 3, shown


def tables_for_people():
    text = bench("--op", "all_reduce,sendrecv", "-e", "8M", "-f", "64", *QUICK)
    assert max(len(line) for line in text.splitlines()) <= 100, text
    assert "out of place" in text and "bound by" in text and "of copy" in text, text


if __name__ == "__main__":
    here = ["in_process", "shared_memory"] + (["mpi"] if shutil.which("mpirun") else [])
    for ranks in (1, 2, 3):
        every_operation(here, ranks)
    types_and_reductions()
    fit_describes_the_times()
    if "mpi" in here:
        under_mpirun()
    algorithms_and_their_table()
    pictures()
    tables_for_people()
