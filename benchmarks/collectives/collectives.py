#!/usr/bin/env python3
"""all_reduce of f32 between two ranks of this host: ours against OpenMPI's, in turns, in one run.

  benchmarks/collectives/all_reduce.py [--build build/release] [--rounds 9]

Prints per size the median time of each, the spread (fastest to slowest round), the ratio of the medians, and what share of
the machine's copy bandwidth ours reaches: an all_reduce of S bytes on p ranks must read and write p * S bytes each.
"""
import argparse
import os
import statistics
import subprocess

SIZES = [4, 64 << 10, 4 << 20, 64 << 20]
RANKS = 2


def times(command):
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {int(size): float(seconds) for size, seconds in (line.split() for line in output.splitlines())}


def human(size):
    for unit, suffix in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {suffix}"
    return f"{size} B"


def spread(values):
    return f"{min(values) * 1e6:.2f}-{max(values) * 1e6:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    bin_dir = os.path.join(options.build, "bin")
    sizes = [str(size) for size in SIZES]
    launch = [os.path.join(bin_dir, "run_ranks"), str(RANKS)]
    ours = launch + [os.path.join(bin_dir, "all_reduce_lockstep")] + sizes
    mpi = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", str(RANKS), os.path.join(bin_dir, "all_reduce_mpi")] + sizes
    bandwidth = launch + [os.path.join(bin_dir, "copy_bandwidth")]

    rounds = []
    for _ in range(options.rounds):
        copy = float(subprocess.run(bandwidth, capture_output=True, text=True, check=True).stdout)
        rounds.append((times(ours), times(mpi), copy))
    copy = statistics.median(r[2] for r in rounds)
    print(f"all_reduce of f32, {RANKS} ranks, {options.rounds} rounds in turns; streaming copies move {copy / 1e9:.1f} GB/s")
    print(f"{'size':>8} {'ours us':>10} {'spread':>21} {'OpenMPI us':>11} {'spread':>21} {'ratio':>6} {'of copy':>8}")
    for size in SIZES:
        a, b = [r[0][size] for r in rounds], [r[1][size] for r in rounds]
        ours_s, mpi_s = statistics.median(a), statistics.median(b)
        share = f"{2 * RANKS * size / ours_s / copy:.0%}" if size >= 4 << 20 else ""
        print(f"{human(size):>8} {ours_s * 1e6:10.2f} {spread(a):>21} {mpi_s * 1e6:11.2f} {spread(b):>21} "
              f"{mpi_s / ours_s:6.1f} {share:>8}")


if __name__ == "__main__":
    main()
