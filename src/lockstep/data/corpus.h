// All tokens of a run as one long sequence: files one after another, or made up. Cut into sequences by Sampler.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/rng.h"
#include "lockstep/data/document_index.h"
#include "lockstep/data/token_file.h"
#include "lockstep/spec/plan.h"

namespace lockstep::data {

class Corpus {
 public:
  // Opens what the plan names. A folder stands for the files in it and below, in the order of their paths; files and
  // folders whose names begin with a dot are skipped, and with a token format all but *.bin. Format "synthetic" is 2^24
  // tokens, each uniform and given by the seed and its offset. Of the first 2^28 tokens all are checked here against
  // the vocabulary, and every token again when it is read.
  //   throws   InvalidArgument: a path that cannot be read or holds nothing, a broken file, a token outside the
  //   vocabulary
  explicit Corpus(const spec::RunPlan& plan);

  int64_t size() const { return synthetic_size_ > 0 ? synthetic_size_ : index_.total(); }  // tokens

  // Fills `out` with the tokens from `offset` on, across files. throws InvalidArgument on a token outside the
  // vocabulary
  void read(int64_t offset, std::span<int64_t> out) const;

  // "43 files, 5456210 tokens"
  std::string describe() const;

 private:
  void read_files(int64_t offset, std::span<int64_t> out) const;
  void check_beginning() const;

  int64_t vocab_;
  std::vector<TokenFile> files_;
  DocumentIndex index_;
  int64_t synthetic_size_ = 0;  // 0: files
  CounterRng synthetic_;
};

}  // namespace lockstep::data
