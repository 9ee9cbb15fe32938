// Sampling from a trained model, one token at a time, with the keys and values of earlier tokens kept.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/local_seams.h"
#include "lockstep/nn/transformer.h"

namespace lockstep::nn {

// Attends over the keys and values of every earlier call as well; one pair of tensors per layer.
class CachedAttention : public AttentionSeam {
 public:
  CachedAttention(int64_t layers, int64_t max_length);
  at::Tensor attend(const at::Tensor& q_BNSD, const at::Tensor& k_BKSD, const at::Tensor& v_BKSD,
                    const Site& site) override;
  at::Tensor positions(int64_t sequence, at::Device device) override;

  int64_t length() const { return length_; }
  void advance(int64_t positions) { length_ += positions; }  // once every layer has seen them

 private:
  struct Cache {
    at::Tensor keys_BKSD, values_BKSD;  // S = max_length
  };
  std::vector<Cache> caches_;
  int64_t max_length_;
  int64_t length_ = 0;
};

// Also when the model is in training mode.
class NoDropout : public DropoutSeam {
 public:
  at::Tensor dropout(const at::Tensor& x_BSH, double p, const Site& site) override;
};

class Generator {
 public:
  // The model must outlive the generator.
  explicit Generator(const Transformer& model);

  // Appends tokens_BS to what was fed before and returns the logits of the token that follows: [B,V].
  //   throws  InvalidArgument when the model's sequence is exceeded
  at::Tensor feed(const at::Tensor& tokens_BS);

  int64_t length() const { return attention_.length(); }

 private:
  const Transformer& model_;
  LocalLinear linear_;
  LocalLoss loss_;
  NoDropout dropout_;
  CachedAttention attention_;
};

struct SamplingOptions {
  double temperature = 1;  // 0: always the likeliest
  int64_t top_k = 0;       // only the k likeliest; 0: all
  uint64_t seed = 1;
};

// One token from logits_V; the draw is numbered, so that a text depends on its seed alone.
int64_t sample(const at::Tensor& logits_V, const SamplingOptions& options, int64_t draw);

// `count` tokens that continue `prompt` (not empty). Where the model's sequence is full, it goes on from its last half.
std::vector<int64_t> generate(const Transformer& model, const std::vector<int64_t>& prompt, int64_t count,
                              const SamplingOptions& options);

}  // namespace lockstep::nn
