"""lockstep verify on both model families and both backends: every layout equals the plain loop, fixed trees bit for bit,
and recomputation changes no bit.

    verify_test.py LOCKSTEP_BINARY
"""

import json
import pathlib
import subprocess
import sys

LOCKSTEP = sys.argv[1]
CONFIGS = pathlib.Path(__file__).resolve().parents[1] / "configs"
LAYOUTS = "single,dp2,dp3,dp4,dp2-acc4,fixed_tree,dp2-fixed_tree,dp4-fixed_tree"
TENSOR_LAYOUTS = "tp2,tp4,dp2-tp2,tp2-sp,tp4-sp,dp2-tp2-sp,dp2-tp2-acc2,dp3-tp2"


def verify(config, layouts, *arguments):
    command = [LOCKSTEP, "verify", CONFIGS / config, "--layouts", layouts, "--json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return result.returncode, json.loads(result.stdout)["layouts"]


def with_recomputation(layout, mode):
    words = [word for word in layout.split("-") if word not in ("single", "fixed_tree")]
    return "-".join([*words, f"recompute_{mode}"] + (["fixed_tree"] if "fixed_tree" in layout else []))


if __name__ == "__main__":
    for config in ("verify.toml", "verify_llama.toml"):
        for backend in ("in_process", "shared_memory"):
            code, rows = verify(config, f"{LAYOUTS},{TENSOR_LAYOUTS}", "--backend", backend)
            assert code == 0 and len(rows) == 16 and all(row["pass"] for row in rows), rows
            for row in rows:
                errors = [row[key] for key in ("max_rel_loss", "max_rel_grad", "rel_norm", "max_rel_param", "max_rel_state")]
                assert max(errors) <= 1e-10, row
                assert row["bitwise"] or "fixed_tree" not in row["name"], row
            print(f"{config} {backend}: worst gradient {max(row['max_rel_grad'] for row in rows):.1e}, "
                  f"worst weight {max(row['max_rel_param'] for row in rows):.1e}")
    # Recomputation changes no bit: each layout is exactly as far from the plain loop as it is without.
    layouts = "single,dp2,dp2-acc4,tp2,dp2-tp2-sp,fixed_tree,dp2-fixed_tree"
    code, plain = verify("verify.toml", layouts, "--set", "model.dropout=0.1")
    assert code == 0, plain
    for mode in ("full", "sqrt", "selective"):
        names = ",".join(with_recomputation(layout, mode) for layout in layouts.split(","))
        code, rows = verify("verify.toml", names, "--set", "model.dropout=0.1")
        assert code == 0, rows
        for before, row in zip(plain, rows, strict=True):
            assert {**before, "name": row["name"]} == row, (before, row)
            assert row["bitwise"] or "fixed_tree" not in row["name"], row
    print("recomputation with dropout: no bit changed")
    for precision_and_more in (("--precision", "fp32"), ("--set", "model.dropout=0.1"), ("--set", 'train.optimizer="sgd"')):
        code, rows = verify("verify.toml", "dp2,dp4-fixed_tree,dp2-tp2-sp", *precision_and_more)
        assert code == 0, rows
        print(f"{' '.join(precision_and_more)}: worst gradient {max(row['max_rel_grad'] for row in rows):.1e}")
