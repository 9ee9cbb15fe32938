// Every key of the configuration, once: where its value lives in a RunPlan and what it means. The parser, the printer
// and the help all walk this list.
#pragma once

#include "lockstep/spec/plan.h"

namespace lockstep::spec {

// Calls visit(section, key, value, meaning) for each key in the order of the file. `Plan` is RunPlan or const RunPlan;
// `value` is a reference to the member.
template <class Plan, class Visit>
void for_each_model_field(Plan& plan, const Visit& visit) {
  auto& model = plan.model;
  visit("model", "preset", model.preset, "a published model to start from; the other keys override it");
  visit("model", "weights", model.weights, "folder of safetensors to start from; empty: initial values");
  visit("model", "layers", model.layers, "transformer blocks");
  visit("model", "hidden", model.hidden, "width of the residual stream");
  visit("model", "heads", model.heads, "attention heads; divides hidden");
  visit("model", "kv_heads", model.kv_heads, "key/value heads; divides heads; without it and a preset: heads");
  visit("model", "ffn_hidden", model.ffn_hidden,
        "width inside the feed-forward part; without it and a preset: 4 hidden");
  visit("model", "vocab", model.vocab, "number of different tokens");
  visit("model", "sequence", model.sequence, "tokens of a training sequence");
  visit("model", "norm", model.norm, "layernorm or rmsnorm");
  visit("model", "norm_eps", model.norm_eps, "added to the variance");
  visit("model", "activation", model.activation, "gelu (exact), gelu_tanh (GPT-2) or swiglu (Llama)");
  visit("model", "position", model.position, "learned or rope");
  visit("model", "rope_theta", model.rope_theta, "base of the rotary frequencies");
  visit("model", "bias", model.bias, "linear layers have one");
  visit("model", "tie_embeddings", model.tie_embeddings, "the head is the token embedding");
  visit("model", "init_std", model.init_std, "of initial weights");
  visit("model", "dropout", model.dropout, "probability; in [0, 1)");
}

template <class Plan, class Visit>
void for_each_train_field(Plan& plan, const Visit& visit) {
  auto& train = plan.train;
  visit("train", "steps", train.steps, "optimizer steps");
  visit("train", "global_batch", train.global_batch, "sequences a step, whatever the layout");
  visit("train", "microbatch", train.microbatch, "sequences a forward pass; divides global_batch");
  visit("train", "seed", train.seed, "of initial values, sample order and dropout");
  visit("train", "precision", train.precision, "fp32, fp64, or bf16 or fp16 with fp32 master weights");
  visit("train", "gradient_dtype", train.gradient_dtype,
        "of accumulated and reduced gradients under bf16 and fp16: fp32, or model (the weights' own)");
  visit("train", "optimizer", train.optimizer, "adamw or sgd");
  visit("train", "lr", train.lr, "the peak learning rate");
  visit("train", "betas", train.betas, "adamw: decay of the first and second moment");
  visit("train", "eps", train.eps, "adamw: added to the root of the second moment");
  visit("train", "momentum", train.momentum, "sgd; 0: none");
  visit("train", "weight_decay", train.weight_decay, "on matrices only");
  visit("train", "clip_norm", train.clip_norm, "largest global norm of the gradient; 0: no clipping");
  visit("train", "warmup_steps", train.warmup_steps, "steps over which lr rises");
  visit("train", "decay", train.decay, "from lr to min_lr over the steps after warm-up: cosine, linear or none");
  visit("train", "min_lr", train.min_lr, "lr at the last step");
}

template <class Plan, class Visit>
void for_each_field(Plan& plan, const Visit& visit) {
  for_each_model_field(plan, visit);
  visit("data", "path", plan.data.path, "files or folders, relative to the working directory");
  visit("data", "format", plan.data.format,
        "bytes, tokens_u16 or tokens_u32 (nanoGPT, llm.c), synthetic (random, no path)");
  visit("data", "validation_fraction", plan.data.validation_fraction, "of the corpus, its end, kept from training");
  for_each_train_field(plan, visit);
  visit("parallel", "data", plan.parallel.data, "data-parallel ranks; 0: those that the other axes leave");
  visit("parallel", "tensor", plan.parallel.tensor, "ranks that share the weights of every layer");
  visit("parallel", "sequence_parallel", plan.parallel.sequence_parallel,
        "tensor ranks split the sequence between the split layers");
  visit("parallel", "rules", plan.parallel.rules,
        "what tensor ranks split, e.g. { vocab = \"none\" }; heads, kv_heads, ffn and vocab by default");
  visit("parallel", "pipeline", plan.parallel.pipeline, "ranks that hold consecutive parts of the model");
  visit("parallel", "schedule", plan.parallel.schedule,
        "what pipeline ranks do when: 1f1b, another kind of lockstep schedule, or a table of your own, x.csv");
  visit("parallel", "chunks", plan.parallel.chunks, "parts of the model per pipeline rank");
  visit("parallel", "stages", plan.parallel.stages,
        "where the model is cut, e.g. \"E+2,3,3,2+H\": layers, E embedding, H head; empty: balanced, or measured");
  visit("parallel", "order", plan.parallel.order, "of ranks along the axes, fastest first");
  visit("parallel", "zero", plan.parallel.zero,
        "what data ranks shard: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters");
  visit("parallel", "zero_group", plan.parallel.zero_group, "data ranks that share one copy of it; 0: all");
  visit("parallel", "gather", plan.parallel.gather,
        "zero = 3: parameters are whole while their layer is used, or stage: during a step");
  visit("parallel", "gradient_reduction", plan.parallel.gradient_reduction,
        "zero = 2, 3: deferred to the last micro-batch, or immediate: after each, less memory, more sent");
  visit("parallel", "reduction", plan.parallel.reduction, "fast, or fixed_tree: the same bits on 1, 2, 4, ... ranks");
  visit("parallel", "bucket_mb", plan.parallel.bucket_mb, "MiB of gradients that are reduced together");
  visit("parallel", "overlap", plan.parallel.overlap, "reduce gradients while backward goes on");
  visit("parallel", "recompute", plan.parallel.recompute,
        "activations that backward computes again: none, full (every block), sqrt, selective (attention core), stage");
  visit("run", "device", plan.run.device, "cpu, cuda or auto (cuda when there is one)");
  visit("run", "directory", plan.run.directory, "where metrics, trace and weights go");
  visit("run", "deadline_s", plan.run.deadline_s, "longest wait for another rank");
  visit("run", "validate_every", plan.run.validate_every, "steps between validations; 0: never");
  visit("run", "validation_batches", plan.run.validation_batches, "global batches a validation looks at; 0: all");
  visit("run", "trace_steps", plan.run.trace_steps, "the last steps kept in trace.json");
  visit("run", "log_all_ranks", plan.run.log_all_ranks, "show every rank's lines, not rank 0's alone");
}

}  // namespace lockstep::spec
