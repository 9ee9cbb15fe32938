// What recomputation saves and costs: activations that the blocks of a model keep for backward, the most bytes alive in
// forward and backward, and the time of both, per mode.
//
//   activation_memory [LAYERS] [HIDDEN] [SEQUENCE] [BATCH]
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/distributed/memory.h"
#include "lockstep/nn/local_seams.h"
#include "lockstep/nn/transformer.h"
#include "lockstep/spec/names.h"

namespace {

using namespace lockstep;

constexpr int kRounds = 5;

struct Measured {
  int64_t kept_bytes = 0, peak_bytes = 0;
  double step_s = 1e9;  // the fastest
};

class Bench {
 public:
  Bench(const spec::ModelSpec& model, int64_t batch)
      : transformer_(model, /*seed=*/1), tokens_(at::zeros({batch, model.sequence}, at::kLong)) {
    for (const nn::Parameter& parameter : transformer_.parameter_list())
      parameter.tensor.mutable_grad() = at::zeros_like(parameter.tensor);
  }

  void step(spec::Recompute mode, Measured& result) {
    const nn::Context context{seams_.seams(), {}, {mode, nullptr}};
    const double start_s = now_s();
    const MemorySince bytes;
    at::Tensor hidden = transformer_.embed(tokens_, context);
    const int64_t embedded = bytes.now();
    hidden = transformer_.blocks({0, transformer_.model().layers}, hidden, context);
    result.kept_bytes = bytes.now() - embedded;
    transformer_.token_losses(hidden, tokens_, context).sum().backward();
    result.peak_bytes = bytes.peak();
    result.step_s = std::min(result.step_s, now_s() - start_s);
  }

 private:
  nn::Transformer transformer_;
  nn::LocalSeams seams_{1};
  at::Tensor tokens_;
};

void print_table(const std::string& preset, int64_t layers, int64_t hidden, int64_t sequence, int64_t batch) {
  spec::ModelSpec model = spec::preset(preset);
  model.layers = layers;
  model.hidden = hidden;
  model.ffn_hidden = 4 * hidden;
  model.sequence = sequence;
  Bench bench(model, batch);
  std::map<spec::Recompute, Measured> results;
  for (int round = 0; round < kRounds; ++round) {  // in turns, so that all see the same machine
    for (const auto& [name, mode] : spec::names_of(spec::Recompute{})) bench.step(mode, results[mode]);
  }
  const Measured& none = results[spec::Recompute::none];
  std::printf("%s, %ld layers, hidden %ld, %ld heads, sequence %ld, batch %ld, fp32\n", preset.c_str(), layers, hidden,
              model.heads, sequence, batch);
  std::printf("  %-10s %12s %8s %12s %8s %8s\n", "mode", "kept bytes", "of none", "peak bytes", "of none", "time");
  for (const auto& [name, mode] : spec::names_of(spec::Recompute{})) {
    const Measured& measured = results[mode];
    const auto share = [](int64_t part, int64_t whole) {
      return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
    };
    std::printf("  %-10s %12ld %7.1f%% %12ld %7.1f%% %7.2fx\n", std::string(name).c_str(), measured.kept_bytes,
                share(measured.kept_bytes, none.kept_bytes), measured.peak_bytes,
                share(measured.peak_bytes, none.peak_bytes), measured.step_s / none.step_s);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int index, int64_t fallback) {
    return index < argc ? std::strtoll(argv[index], nullptr, 10) : fallback;
  };
  at::set_num_threads(1);
  for (const char* preset : {"gpt-tiny", "llama-tiny"}) {
    print_table(preset, argument(1, 16), argument(2, 128), argument(3, 128), argument(4, 4));
  }
  return 0;
}
