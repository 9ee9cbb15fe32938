"""Sharded training against PyTorch's FSDP2 on the same weights and batches, 2 ranks: zero_parity_test.py LOCKSTEP ZERO_PEER

Exit code 77 when a package is missing.
"""
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from safetensors.torch import load_file, save_file
    from torch.distributed.fsdp import fully_shard
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

RANKS, STEPS, VOCAB, SEQUENCE = 2, 10, 61, 24
MODELS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(n_layer=3, n_embd=48, n_head=4, vocab_size=VOCAB, n_positions=SEQUENCE, attn_pdrop=0.0,
                                         embd_pdrop=0.0, resid_pdrop=0.0)),
    "llama": (LlamaForCausalLM, LlamaConfig(num_hidden_layers=3, hidden_size=48, intermediate_size=80, num_attention_heads=6,
                                            num_key_value_heads=2, vocab_size=VOCAB, max_position_embeddings=SEQUENCE)),
}


def prepare(name, folder):
    make, config = MODELS[name]
    torch.manual_seed(4)
    make(config).save_pretrained(folder)
    torch.manual_seed(5)
    text = torch.randint(VOCAB, (STEPS, 4, SEQUENCE + 1))
    tokens, targets = text[..., :-1].contiguous(), text[..., 1:].clone()
    targets[torch.rand(targets.shape) < 0.2] = -1
    save_file(dict(tokens=tokens, targets=targets), folder / "batches.safetensors")


def fsdp_rank(name, folder, rank, port):
    """One rank of FSDP2: blocks and the root are sharded; AdamW as of zero_peer.cc, clipping at 1."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    make, _ = MODELS[name]
    model = make.from_pretrained(folder)
    blocks = model.transformer.h if name == "gpt2" else model.model.layers
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    parameters = list(model.parameters())
    groups = [dict(params=[p for p in parameters if p.ndim >= 2], weight_decay=0.1),
              dict(params=[p for p in parameters if p.ndim < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    batches = load_file(folder / "batches.safetensors")
    losses = []
    for tokens, targets in zip(batches["tokens"], batches["targets"]):
        valid = (targets != -1).sum()
        logits = model(tokens.chunk(RANKS)[rank]).logits
        sum_of_losses = F.cross_entropy(logits.flatten(0, 1), targets.chunk(RANKS)[rank].flatten(), ignore_index=-1, reduction="sum")
        loss = sum_of_losses / valid
        optimizer.zero_grad()
        (loss * RANKS).backward()  # FSDP takes the mean over ranks
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())
    if rank == 0:
        save_file(dict(losses=torch.tensor(losses, dtype=torch.float64)), folder / "fsdp.safetensors")
    # Threads of PyTorch's may still run when its objects are destroyed, which then ends the process ("terminate called").
    os._exit(0)


def run_fsdp(name, folder):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, __file__, "--fsdp", name, folder, str(rank), str(port)], env=environment)
             for rank in range(RANKS)]
    assert not any([rank.wait(timeout=300) for rank in ranks]), "FSDP failed"
    return load_file(folder / "fsdp.safetensors")["losses"]


def main(lockstep, peer):
    for name in MODELS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            prepare(name, folder)
            theirs = run_fsdp(name, folder)
            assert theirs[-1] != theirs[0]
            for zero in (1, 2, 3):
                subprocess.run([lockstep, "launch", "--ranks", str(RANKS), "--", peer, folder, str(zero), str(STEPS)], check=True, timeout=300)
                ours = load_file(folder / "zero.safetensors")["losses"]
                error = (ours - theirs).abs().max().item()
                print(f"{name} zero{zero}: losses of {STEPS} steps within {error:.1e} of FSDP2's")
                assert error <= 1e-5, (name, zero, ours, theirs)


if __name__ == "__main__":
    if sys.argv[1] == "--fsdp":
        fsdp_rank(sys.argv[2], pathlib.Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        main(*sys.argv[1:3])
