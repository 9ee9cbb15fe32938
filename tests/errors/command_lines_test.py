"""Wrong command lines, each with the one line and the exit code that its user gets.

    command_lines_test.py LOCKSTEP_BINARY
"""

import json
import pathlib
import subprocess
import sys
import tempfile

LOCKSTEP = sys.argv[1]
CONFIG = str(pathlib.Path(__file__).resolve().parents[2] / "configs" / "verify.toml")
RANGE = "must be a number, 1 to 1024"

# arguments, exit code, the line
CASES = [
    ([], 2, "error: A subcommand is required; see lockstep help"),
    (["trian", CONFIG], 2, "error: command = trian: must be one of train, launch, generate, verify, bench, schedule, trace, flight, calibrate, doctor (nearest: train); see lockstep help"),
    (["plan", "--gpus", "8"], 2, "error: plan: not supported yet by this version; see lockstep help"),
    (["bench"], 2, "error: A subcommand is required; see lockstep bench --help"),
    (["train"], 2, "error: config is required; see lockstep train --help"),
    (["train", CONFIG, "--resume", "runs/x"], 2, "error: --resume: not supported yet by this version; see lockstep train --help"),
    (["train", "nothing.toml"], 2, "error: configuration nothing.toml: cannot be read; name a TOML file, such as configs/shakespeare.toml"),
    (["train", CONFIG, "--ranks", "0"], 2, f"error: --ranks = 0: {RANGE} (nearest: 1)"),
    (["train", CONFIG, "--ranks", "two"], 2, f"error: --ranks = two: {RANGE}"),
    (["train", CONFIG, "--rank", "2"], 2, "error: The following arguments were not expected: 2 --rank; see lockstep train --help"),
    (["train", CONFIG, "--layout", "dp2", "--ranks", "3"], 2, "error: --ranks = 3: layout dp2 is for another number of ranks (nearest: 2)"),
    (["train", CONFIG, "--layout", "dp2-acc5"], 2, "acc5"),
    (["train", CONFIG, "--layout", "cp2"], 2, 'error: layout = "cp2": cp2 is not supported by this version'),
    (["train", CONFIG, "--layout", "2dp"], 2, 'error: layout = "2dp"'),
    (["train", CONFIG, "--ranks", "9"], 2, "error: train.microbatch = 3: makes 8 micro-batches of train.global_batch = 24, fewer than the 9 data ranks"),
    (["train", CONFIG, "--set", "train.lr"], 2, "error: --set train.lr: must be section.key=value, as in train.lr=..."),
    (["train", CONFIG, "--set", "train.lr=-1"], 2, "train.lr = -1"),
    (["train", CONFIG, "--set", "run.device=cuda"], 2, "error: run.device = cuda: "),
    (["train", CONFIG, "--set", 'data.format="bytes"', "--set", "model.vocab=256", "--set", 'data.path=["/nowhere"]', "--ranks", "2"], 2, "/nowhere"),
    (["train", CONFIG, "--set", "run.directory=/proc/nowhere"], 2, "error: run.directory = /proc/nowhere: must be a folder that can be made and written"),
    (["train", CONFIG, "--set", "model.weights=/nowhere"], 2, "/nowhere"),
    (["verify", CONFIG, "--precision", "fp8"], 2, "error: --precision = fp8: must be one of fp64, fp32, bf16, fp16 (nearest: fp64)"),
    (["verify", CONFIG, "--backend", "nccl"], 2, "error: --backend = nccl: must be one of in_process, shared_memory, mpi"),
    (["verify", CONFIG, "--layouts", ""], 2, "error: --layouts = : must name at least one layout (nearest: single)"),
    (["verify", CONFIG, "--layouts", "single,cp2"], 2, 'error: layout = "cp2": cp2 is not supported by this version'),
    (["launch", "--ranks", "2"], 2, "error: program is required; see lockstep launch --help"),
    (["launch", "--ranks", "2", "--", "/nowhere"], 127, "cannot start /nowhere: No such file or directory"),
    (["launch", "--ranks", "2000", "--", "true"], 2, f"error: --ranks = 2000: {RANGE} (nearest: 1024)"),
    (["launch", "--ranks", "2", "--", "sh", "-c", "exit 7"], 7, "exit code 7"),
    (["generate"], 2, "error: --run is required; see lockstep generate --help"),
    (["generate", "--run", "/nowhere"], 2, "error: --run = /nowhere: must be the folder of a finished run"),
    (["generate", "--run", "/nowhere", "--tokens", "-1"], 2, "error: --tokens = -1: must be a number, 0 to 16777216 (nearest: 0)"),
    (["bench", "collectives", "--op", "allreduce"], 2, "error: --op = allreduce: must be one of all_reduce, reduce_scatter, all_gather, broadcast, reduce, scatter, gather, all_to_all, sendrecv (nearest: all_reduce)"),
    (["bench", "collectives", "--op", ""], 2, "error: --op = : must name at least one operation, or all (nearest: all_reduce)"),
    (["bench", "collectives", "-b", "64K", "-e", "1K"], 2, "error: --max = 1K: must not be below --min = 64K (nearest: 64K)"),
    (["bench", "collectives", "-b", "0"], 2, "error: --min = 0: must be at least 1 (nearest: 1)"),
    (["bench", "collectives", "-e", "lots"], 2, "error: --max = lots: must be a size such as 64, 4K, 64M or 1G"),
    (["bench", "collectives", "-f", "1"], 2, "error: --factor = 1: must be a number, 2 to 1073741824 (nearest: 2)"),
    (["bench", "collectives", "-d", "f8"], 2, "error: --dtype = f8: must be one of f32, f64, bf16, f16, i32, i64, u8"),
    (["bench", "collectives", "-o", "prod"], 2, "error: --reduction = prod: must be one of sum, average, min, max, avg"),
    (["bench", "collectives", "-d", "i32", "-o", "avg"], 2, "error: --reduction = avg: there is no average of i32 (nearest: sum)"),
    (["bench", "collectives", "--op", "all_gather", "-o", "max"], 2, "error: --reduction = max: all_gather does not reduce"),
    (["bench", "collectives", "--root", "1"], 2, "error: --root = 1: all_reduce has no root"),
    (["bench", "collectives", "--op", "reduce", "--root", "2"], 2, "error: --root = 2: must be a rank, 0 to 1 (nearest: 1)"),
    (["bench", "collectives", "--backend", "nvlink"], 2, "error: backend = nvlink: must be one of in_process, shared_memory"),
    (["bench", "collectives", "--algorithm", "rings"], 2, "error: --algorithm = rings: all_reduce has auto, all, native, naive, direct"),
    (["bench", "collectives", "--op", "sendrecv", "--algorithm", "ring"], 2, "error: --algorithm = ring: sendrecv has auto"),
    (["bench", "collectives", "--show", "rign"], 2, "error: algorithm = rign: all_reduce has naive, direct"),
    (["bench", "collectives", "--show", "ring", "--op", "sendrecv"], 2, "error: --op = sendrecv: must be one operation that has algorithms, with --show (nearest: all_reduce)"),
    (["bench", "collectives", "--show", "ring", "-e", "1M"], 2, "error: --max excludes --show; see lockstep bench collectives --help"),
    (["bench", "collectives", "--tune", "--output", "/nowhere/table"], 2, "error: --output = /nowhere/table: must be a file that can be written"),
    (["bench", "collectives", "--output", "table"], 2, "error: --output requires --tune; see lockstep bench collectives --help"),
    (["bench", "collectives", "--tune", "--backend", "in_process,shared_memory"], 2, "error: --backend = in_process,shared_memory: must be one with --tune"),
    (["bench", "collectives", "--tune", "--op", "sendrecv"], 2, "error: --op = sendrecv: sendrecv has no algorithms to choose from with --tune (nearest: all)"),
    (["schedule"], 2, "error: schedule needs either --kind NAME with --stages K and --microbatches M, or --from FILE.csv"),
    (["schedule", "--kind", "1f2b", "--stages", "4", "--microbatches", "8"], 2, "error: kind = 1f2b: must be one of naive, gpipe, 1f1b, interleaved, looped_bfs, zb_h1, zb_h2, interleaved_zb, zb_v, dualpipe_v (nearest: 1f1b)"),
    (["schedule", "--kind", "1f1b", "--stages", "4", "--microbatches", "8", "--cell", "0"], 2, "error: --cell = 0: must be a number, 1e-09 to 1e+300 (nearest: 1e-09)"),
    (["schedule", "--kind", "1f1b", "--stages", "4"], 2, "error: --stages and --microbatches are required without --from"),
    (["schedule", "--kind", "1f1b", "--stages", "0", "--microbatches", "8"], 2, "error: 1f1b: ranks = 0: must be at least 1 (nearest: 1)"),
    (["schedule", "--kind", "1f1b", "--stages", "4", "--microbatches", "x"], 2, "error: --microbatches = x: must be a number, or several separated by commas"),
    (["schedule", "--kind", "interleaved", "--stages", "4", "--microbatches", "6", "--chunks", "2"], 2, "error: interleaved: microbatches = 6: micro-batches visit the chunks in groups of the ranks: must be a multiple of ranks = 4 (nearest: 4 or 8)"),
    (["schedule", "--kind", "dualpipe_v", "--stages", "4", "--microbatches", "7"], 2, "(nearest: 8)"),
    (["schedule", "--kind", "1f1b", "--stages", "1000", "--microbatches", "100000"], 2, "error: --microbatches = 100000: stages x chunks x micro-batches must be at most 1048576 (nearest: 1048)"),
    (["schedule", "--kind", "1f1b", "--stages", "4", "--microbatches", "8", "--forward", "1,2"], 2, "error: forward = 1,2: must be one time, or one for each of 4 stages"),
    (["schedule", "--kind", "1f1b", "--stages", "4", "--microbatches", "8", "--transfer", "-1"], 2, "error: --transfer = -1: must be a time, at least 0 (nearest: 0)"),
    (["schedule", "--kind", "1f1b", "--stages", "4", "--microbatches", "8", "--transfer-mode", "tcp"], 2, "error: --transfer-mode = tcp: must be async, link or block (nearest: async)"),
    (["schedule", "--kind", "1f1b", "--stages", "4", "--microbatches", "8", "--backward-order", "rising"], 2, "error: 1f1b: backward_order = rising: only gpipe and looped_bfs have a choice"),
    (["schedule", "--kind", "1f1b", "--stages", "4", "--microbatches", "8", "--placement", "v"], 2, "error: --placement is what the file of --from is held to"),
    (["schedule", "--kind", "1f1b", "--stages", "4", "--microbatches", "8", "--cell", "1e-9"], 2, "error: cell = 1e-09: must be a time above 0 that gives at most 100000 cells (nearest: 1)"),
    (["schedule", "--kind", "1f1b,gpipe", "--stages", "4", "--microbatches", "8", "--svg", "x.svg"], 2, "error: --export, --svg and --cell are of one schedule"),
    (["schedule", "--from", "/nowhere.csv"], 2, "error: --from = /nowhere.csv: cannot be read"),
    (["schedule", "--from", CONFIG], 2, "line 1, cell 1 = "),
    (["schedule", "--from", "/nowhere.csv", "--stages", "4"], 2, "error: --stages, --microbatches, --chunks and --backward-order come from the file with --from"),
    (["schedule", "--waves", "--stages", "3", "--microbatches", "-1"], 2, "error: microbatches = -1: must not be negative (nearest: 0)"),
    (["schedule", "--waves", "--stages", "0", "--microbatches", "3"], 2, "error: stages = 0: must be at least 1 (nearest: 1)"),
    (["calibrate", "microbatch", CONFIG, "--samples", "2,2"], 2, "error: --samples = 2,2: alpha and beta need at least two different sizes (nearest: 1,2,4,8)"),
    (["calibrate", "microbatch", CONFIG, "--samples", "1,x"], 2, "error: --samples = x: must be whole numbers from 1, separated by commas (nearest: 1,2,4)"),
    (["calibrate", "microbatch", CONFIG, "--stages", "0"], 2, "error: --stages = 0: must be whole numbers from 1"),
    (["calibrate", "microbatch", CONFIG, "--set", "parallel.tensor=2"], 2, "error: parallel.tensor = 2: one rank is measured, and tensor ranks compute a layer together (nearest: 1)"),
    (["calibrate", "machine"], 2, "error: machine: not supported yet by this version"),
    (["doctor", "--jsn"], 2, "error: The following argument was not expected: --jsn; see lockstep doctor --help"),
]


def lockstep(*arguments):
    return subprocess.run([LOCKSTEP, *arguments], capture_output=True, text=True, timeout=120)


def check_wrong_ones():
    failed = 0
    for arguments, code, line in CASES:
        result = lockstep(*arguments)
        errors = [x for x in result.stderr.splitlines() if "error: " in x or "cannot start" in x]
        one_line = len(errors) == 1 or arguments[:1] == ["launch"]
        if result.returncode != code or line not in result.stderr or not one_line or "internal error" in result.stderr:
            failed += 1
            print(f"lockstep {' '.join(arguments)}\n  expected {code}: {line}\n  got      {result.returncode}: {result.stderr}{result.stdout}")
    return failed


def check_right_ones():
    assert "train" in lockstep("help").stdout and lockstep("help").returncode == 0
    assert "Example: lockstep train" in lockstep("train", "--help").stdout
    document = json.loads(lockstep("doctor", "--json").stdout)
    assert document["cores"] >= 1 and "shared_memory" in document["backends"]
    with tempfile.TemporaryDirectory() as folder:
        trained = lockstep("train", CONFIG, "--layout", "dp2-acc4", "--json", "--set", f"run.directory={folder}/run")
        summary = json.loads(trained.stdout)
        assert summary["layout"] == "dp2-acc4" and summary["ranks"] == 2 and len(summary["per_rank"]) == 2, summary
        assert 0 < summary["recorder_share"] < 0.01, summary
        metrics = [json.loads(x) for x in pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
        assert [m["step"] for m in metrics] == [1, 2, 3, 4, 5]
        assert set(metrics[0]) == {"step", "loss", "grad_norm", "lr", "tokens_per_s", "step_s", "skipped", "loss_scale"}
        assert json.loads(pathlib.Path(folder, "run", "summary.json").read_text()) == summary
        assert "205184 parameters" in pathlib.Path(folder, "run", "rank1.log").read_text(), "every rank has a log of its own"
        trace = json.loads(pathlib.Path(folder, "run", "trace.json").read_text())["traceEvents"]
        assert {(e["pid"], e["tid"]) for e in trace if e["ph"] == "X"} == {(0, 0), (0, 1), (1, 0), (1, 1)}
        generated = json.loads(lockstep("generate", "--run", f"{folder}/run", "--prompt", "1,2,3", "--tokens", "4", "--json").stdout)
        assert len(generated["tokens"]) == 4
        again = lockstep("train", CONFIG, "--ranks", "2", "--set", f"run.directory={folder}/again", "--set", f"model.weights={folder}/run/weights")
        assert again.returncode == 0, again.stderr
        first = json.loads(pathlib.Path(folder, "again", "metrics.jsonl").read_text().splitlines()[0])
        assert first["loss"] != metrics[0]["loss"], "training starts from the weights it was given"


if __name__ == "__main__":
    wrong = check_wrong_ones()
    check_right_ones()
    print(f"{len(CASES) - wrong} of {len(CASES)} wrong command lines are told what is wrong")
    sys.exit(1 if wrong else 0)
