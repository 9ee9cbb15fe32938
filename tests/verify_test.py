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
SHARDED = ("zero1,zero2,zero3,dp2-zero1,dp2-zero2,dp2-zero3,dp3-zero1,dp3-zero2,dp3-zero3,dp4-zero1,dp4-zero2,dp4-zero3,"
           "dp2-zero1-acc4,dp2-zero2-acc4,dp2-zero3-acc2,dp4-zero2g2,dp4-zero3g2,dp4-zero3g2-acc2")
LAYOUTS = "single,dp2,dp3,dp4,dp2-acc4,fixed_tree,dp2-fixed_tree,dp4-fixed_tree"
TENSOR_LAYOUTS = "tp2,tp4,dp2-tp2,tp2-sp,tp4-sp,dp2-tp2-sp,dp2-tp2-acc2,dp3-tp2"
# Every kind, every kind with shards, and what each axis and mode of recomputation adds; docs/verify.md has more.
KINDS = ("naive", "gpipe", "1f1b", "zb_h1", "zb_h2", "zb_v", "dualpipe_v")
OF_CHUNKS = ("interleaved", "looped_bfs", "interleaved_zb")
PIPELINES = [f"pp2-{kind}" for kind in KINDS] + [f"pp2-v2-{kind}" for kind in OF_CHUNKS]
SHARDED_PIPELINES = [f"dp2-pp2-zero{stage}-{kind}" for stage in (2, 3) for kind in KINDS]
SHARDED_PIPELINES += [f"dp2-pp2-v2-zero{stage}-{kind}" for stage in (2, 3) for kind in OF_CHUNKS]
THREE_DIMENSIONS = ("pp4,dp2-pp4-zero1,tp2-pp2-zb_v,tp2-sp-pp4-zb_h1,dp2-tp2-pp2,dp2-tp2-sp-pp2-gpipe,dp2-tp2-sp-pp2-zero3,pp4-recompute_stage,"
                    "pp2-zb_h1-recompute_sqrt,pp2-zb_v-recompute_selective,dp2-tp2-sp-pp2-zero3-zb_v-recompute_full")


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
    # The order of additions is one process's where each stage has its own table: so are the bits.
    layouts = "pp2,pp4,pp2-v2-interleaved,pp2-zb_h1,pp2-zb_v,pp4-recompute_stage,pp2-bf16,pp2-zb_h1-bf16,pp2-fixed_tree,dp2-pp2-gpipe-fixed_tree"
    code, rows = verify("verify_llama.toml", layouts, "--set", "model.dropout=0.1")
    assert code == 0 and all(row["bitwise"] for row in rows), rows
    code, rows = verify("verify.toml", "pp2-bf16,dp2-pp2-gpipe-fp16,tp2-pp2-bf16")
    assert code == 0 and all(row["pass"] for row in rows), rows
    print("pipelines in the order of one process: every bit")
    more_ways = (("verify.toml", "in_process", SHARDED, ()),
                 ("verify_llama.toml", "in_process", SHARDED, ()),
                 ("verify.toml", "in_process", SHARDED, ("--set", "model.tie_embeddings=false")),
                 ("verify_llama.toml", "in_process", SHARDED, ("--set", "model.tie_embeddings=true")),
                 ("verify.toml", "in_process", "tp2-zero3,dp2-tp2-zero1,dp2-tp2-zero2,dp2-tp2-zero3,dp2-tp2-sp-zero1,dp2-tp2-sp-zero3", ()),
                 ("verify_llama.toml", "in_process", "dp2-tp2-sp-zero2,dp2-tp2-sp-zero3,dp2-tp4-zero3,dp2-tp2-zero3g1", ()),
                 ("verify.toml", "in_process", "dp2-zero3-recompute_full,dp2-zero3-recompute_sqrt,dp2-zero2-recompute_selective", ()),
                 ("verify.toml", "shared_memory", "dp2-zero1,dp3-zero2,dp4-zero3,dp4-zero3g2-acc2", ()),
                 ("verify.toml", "in_process", "dp2-zero2,dp3-zero3,dp2-zero3-acc4,dp4-zero3g2-acc2",
                  ("--set", 'parallel.gradient_reduction="immediate"')),
                 ("verify.toml", "in_process", ",".join(PIPELINES + SHARDED_PIPELINES), ("--set", "model.dropout=0.1")),
                 ("verify.toml", "in_process", THREE_DIMENSIONS, ("--set", "model.tie_embeddings=false")),
                 ("verify_llama.toml", "in_process", THREE_DIMENSIONS, ("--set", "model.tie_embeddings=true")),
                 ("verify.toml", "shared_memory", "pp2,dp2-pp2-zero3-zb_h1,dp2-tp2-sp-pp2", ()),
                 ("verify_llama.toml", "in_process", "dp2-zero3,dp3-zero3,dp2-zero3-acc4",
                  ("--set", 'parallel.gather="stage"', "--set", "parallel.overlap=false")))
    for config, backend, layouts, settings in more_ways:
        code, rows = verify(config, layouts, "--backend", backend, *settings)
        assert code == 0 and len(rows) == len(layouts.split(",")), rows
        for row in rows:
            errors = [row[key] for key in ("max_rel_loss", "max_rel_grad", "rel_norm", "max_rel_param", "max_rel_state")]
            assert row["pass"] and max(errors) <= 1e-10, row
        print(f"{config} {backend} {layouts.split(',')[0]} ... {' '.join(settings)}: worst gradient {max(row['max_rel_grad'] for row in rows):.1e}, "
              f"worst weight {max(row['max_rel_param'] for row in rows):.1e}")
    for precision_and_more in (("--precision", "fp32"), ("--set", "model.dropout=0.1"), ("--set", 'train.optimizer="sgd"')):
        code, rows = verify("verify.toml", "dp2,dp4-fixed_tree,dp2-tp2-sp", *precision_and_more)
        assert code == 0, rows
        print(f"{' '.join(precision_and_more)}: worst gradient {max(row['max_rel_grad'] for row in rows):.1e}")
