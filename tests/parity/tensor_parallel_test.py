"""Our tensor parallelism against PyTorch's (DTensor): tensor_parallel_test.py LAYOUT_PEER

The same Llama weights and batches on two ranks of each: the losses of ten steps agree. Exit code 77 when a package is
missing.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from safetensors.torch import load_file, save_file
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

RANKS, STEPS, VOCAB, SEQUENCE = 2, 10, 64, 24
# The same numbers stand in layout_peer.cc.
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, foreach=False)
CONFIG = LlamaConfig(num_hidden_layers=3, hidden_size=48, intermediate_size=80, num_attention_heads=6, num_key_value_heads=2,
                     vocab_size=VOCAB, max_position_embeddings=SEQUENCE, tie_word_embeddings=False)


def prepare(folder):
    torch.manual_seed(4)
    model = LlamaForCausalLM(CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    text = torch.randint(VOCAB, (STEPS, 4, SEQUENCE + 1))
    targets = text[..., 1:].clone()
    targets[torch.rand(targets.shape) < 0.2] = -1
    save_file(dict(tokens=text[..., :-1].contiguous(), targets=targets), folder / "batches.safetensors")


def split(model):
    mesh = init_device_mesh("cpu", (RANKS,))
    plan = {"model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
            "lm_head": ColwiseParallel(output_layouts=Replicate())}
    for layer in range(CONFIG.num_hidden_layers):
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            plan[f"model.layers.{layer}.{name}"] = ColwiseParallel()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            plan[f"model.layers.{layer}.{name}"] = RowwiseParallel()
    return parallelize_module(model, mesh, plan)


def train_as_rank(rank, folder):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    model = split(LlamaForCausalLM.from_pretrained(folder, attn_implementation="sdpa").train())
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    batches, losses = load_file(folder / "batches.safetensors"), []
    for tokens, targets in zip(batches["tokens"], batches["targets"]):
        logits = model(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if rank == 0:
        save_file(dict(losses=torch.tensor(losses, dtype=torch.float64)), folder / "pytorch_losses.safetensors")
    # Threads of PyTorch's may still run when its objects are destroyed, which then ends the process ("terminate called").
    os._exit(0)


def main(peer):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        prepare(folder)
        torch.multiprocessing.spawn(train_as_rank, args=(folder,), nprocs=RANKS)
        expected = load_file(folder / "pytorch_losses.safetensors")["losses"]
        assert expected[-1] < expected[0], expected
        for layout in ("tp2", "tp2-sp"):
            done = subprocess.run([peer, str(folder), layout, str(STEPS)], capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{layout}: {done.returncode}: {done.stderr}"
            losses = load_file(folder / "losses.safetensors")["losses"]
            worst = (losses - expected).abs().max().item()
            print(f"{layout}: losses {losses[0]:.4f} to {losses[-1]:.4f}, largest difference from PyTorch's {worst:.1e}")
            assert worst <= 1e-5, (losses, expected)


if __name__ == "__main__":
    main(sys.argv[1])
