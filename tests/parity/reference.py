"""The transformer in plain PyTorch, as its papers write it: no fused kernels, parameters by lockstep's names.

Written to be compared with, so clarity is its only aim. `model` is a dict with the keys of lockstep's [model].
"""
import math

import torch
import torch.nn.functional as F


def norm(x, p, name, model):
    weight = p[name + ".weight"]
    if model["norm"] == "rmsnorm":
        return x / torch.sqrt(x.square().mean(-1, keepdim=True) + model["norm_eps"]) * weight
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + model["norm_eps"])
    return scaled * weight + p[name + ".bias"]


def linear(x, p, name):
    y = x @ p[name + ".weight"].T
    return y + p[name + ".bias"] if name + ".bias" in p else y


def rope(x_BNSD, model):
    sequence, size = x_BNSD.shape[-2:]
    frequencies = model["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles_SD = torch.outer(torch.arange(sequence, dtype=torch.float64), frequencies).repeat(1, 2)
    first, second = x_BNSD.chunk(2, dim=-1)
    return x_BNSD * angles_SD.cos().to(x_BNSD) + torch.cat([-second, first], -1) * angles_SD.sin().to(x_BNSD)


def attention(x_BSH, p, name, model):
    batch, sequence, _ = x_BSH.shape
    head_size = model["hidden"] // model["heads"]

    def heads(part):
        return linear(x_BSH, p, f"{name}.{part}").view(batch, sequence, -1, head_size).transpose(1, 2)

    q, k, v = heads("query"), heads("key"), heads("value")
    if model["position"] == "rope":
        q, k = rope(q, model), rope(k, model)
    group = model["heads"] // model["kv_heads"]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    hidden_keys = torch.ones(sequence, sequence, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(head_size)).masked_fill(hidden_keys, -math.inf)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, sequence, -1)
    return linear(mixed, p, name + ".output")


def ffn(x, p, name, model):
    up = linear(x, p, name + ".up")
    if model["activation"] == "swiglu":
        return linear(F.silu(linear(x, p, name + ".gate")) * up, p, name + ".down")
    return linear(F.gelu(up, approximate="tanh" if model["activation"] == "gelu_tanh" else "none"), p, name + ".down")


def logits(p, tokens_BS, model):
    x = p["embed.tokens.weight"][tokens_BS]
    if model["position"] == "learned":
        x = x + p["embed.positions.weight"][: tokens_BS.shape[1]]
    for i in range(model["layers"]):
        x = x + attention(norm(x, p, f"layers.{i}.attention_norm", model), p, f"layers.{i}.attention", model)
        x = x + ffn(norm(x, p, f"layers.{i}.ffn_norm", model), p, f"layers.{i}.ffn", model)
    head = p["embed.tokens.weight" if model["tie_embeddings"] else "head.weight"]
    return norm(x, p, "final_norm", model) @ head.T


def train(p, tokens_NBS, targets_NBS, model, dtype=None):
    """One AdamW step per batch, p updated in place; the numbers are those of parity_peer.cc. Returns losses and norms.

    With a dtype the model computes on p rounded to it, logits are widened for the loss, and p are the master weights.
    """
    p = {name: tensor.requires_grad_() for name, tensor in p.items()}
    groups = [
        dict(params=[t for t in p.values() if t.ndim >= 2], weight_decay=0.1),
        dict(params=[t for t in p.values() if t.ndim < 2], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for tokens_BS, targets_BS in zip(tokens_NBS, targets_NBS):
        rounded = {name: tensor.to(dtype) if dtype else tensor for name, tensor in p.items()}
        logits_BSV = logits(rounded, tokens_BS, model)
        logits_TV = (logits_BSV.float() if dtype else logits_BSV).flatten(0, 1)
        loss = F.cross_entropy(logits_TV, targets_BS.flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(p.values(), 1.0)))
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64), torch.tensor(norms, dtype=torch.float64)
