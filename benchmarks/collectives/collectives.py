#!/usr/bin/env python3
"""Collectives of f32 between ranks of this host: ours against OpenMPI's, in turns, in one run.

  benchmarks/collectives/collectives.py [--build build/release] [--rounds 5] [--ops all_reduce,...] [--ranks 2,4]

A size is the longest buffer of a rank, rounded up to whole elements. A time is the mean of calls made one after another, until
every rank is through. Prints per operation, ranks and size the median time of
each, the spread (fastest to slowest round) and the ratio of the medians; for long all_reduces what share of the machine's copy
bandwidth ours reaches: one of S bytes on p ranks must read and write p * S bytes each. Where there are more ranks than
processors OpenMPI is told so (mpi_yield_when_idle), as it is meant to be used there.
"""
import argparse
import os
import statistics
import subprocess

SIZES = [4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20]
OPERATIONS = "all_reduce,all_gather,reduce_scatter,broadcast,all_to_all,sendrecv"


def output_of(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def times(command):
    return {int(size): float(seconds) for size, seconds in (line.split() for line in output_of(command).splitlines())}


def human(size):
    for unit, suffix in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {suffix}"
    return f"{size} B"


def spread(values):
    return f"{min(values) * 1e6:.2f}-{max(values) * 1e6:.2f}"


def commands(bin_dir, operation, ranks):
    """ours, OpenMPI's, our copy bandwidth"""
    launch = [os.path.join(bin_dir, "run_ranks"), str(ranks)]
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
    if ranks > os.cpu_count():
        mpirun += ["--mca", "mpi_yield_when_idle", "1"]
    arguments = [operation] + [str(size) for size in SIZES]
    return (launch + [os.path.join(bin_dir, "collectives_lockstep")] + arguments,
            mpirun + ["-n", str(ranks), os.path.join(bin_dir, "collectives_mpi")] + arguments,
            launch + [os.path.join(bin_dir, "copy_bandwidth")])


def compare(bin_dir, operation, ranks, rounds):
    """Prints the table of one operation; returns the lines in which ours is more than 10 % slower."""
    ours, mpi, bandwidth = commands(bin_dir, operation, ranks)
    reduces = operation == "all_reduce"
    results = [(times(ours), times(mpi), float(output_of(bandwidth)) if reduces else 0) for _ in range(rounds)]
    copy = statistics.median(r[2] for r in results)
    copies = f"; streaming copies move {copy / 1e9:.1f} GB/s" if reduces else ""
    print(f"\n{operation} of f32, {ranks} ranks, {rounds} rounds in turns{copies}")
    print(f"{'size':>8} {'ours us':>10} {'spread':>21} {'OpenMPI us':>11} {'spread':>21} {'ratio':>6} {'of copy':>8}")
    slower = []
    for size in SIZES:
        a, b = [r[0][size] for r in results], [r[1][size] for r in results]
        ours_s, mpi_s = statistics.median(a), statistics.median(b)
        share = f"{2 * ranks * size / ours_s / copy:.0%}" if reduces and size >= 4 << 20 else ""
        print(f"{human(size):>8} {ours_s * 1e6:10.2f} {spread(a):>21} {mpi_s * 1e6:11.2f} {spread(b):>21} "
              f"{mpi_s / ours_s:6.2f} {share:>8}", flush=True)
        if ours_s > 1.1 * mpi_s:
            slower.append(f"{operation}, {ranks} ranks, {human(size)}: {mpi_s / ours_s:.2f}")
    return slower


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ops", default=OPERATIONS)
    parser.add_argument("--ranks", default="2,4")
    options = parser.parse_args()
    slower = []
    for ranks in options.ranks.split(","):
        for operation in options.ops.split(","):
            slower += compare(os.path.join(options.build, "bin"), operation, int(ranks), options.rounds)
    print("\nmore than 10 % slower than OpenMPI: " + ("; ".join(slower) or "none"))


if __name__ == "__main__":
    main()
