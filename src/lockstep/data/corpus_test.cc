#include "lockstep/data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A folder of its own for each test, removed at its end.
class CorpusTest : public ::testing::Test {
 protected:
  CorpusTest() {
    std::string pattern = (fs::temp_directory_path() / "lockstep_corpus_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~CorpusTest() override { fs::remove_all(folder_); }

  template <class Element>
  std::string write(const std::string& name, const std::vector<Element>& contents) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream out(folder_ / name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(contents.data()),
              static_cast<std::streamsize>(contents.size() * sizeof(Element)));
    return (folder_ / name).string();
  }
  std::string write(const std::string& name, const std::string& contents) {
    return write(name, std::vector<char>(contents.begin(), contents.end()));
  }

  template <class Token>
  std::string write_llm_c(const std::string& name, std::vector<int32_t> header, const std::vector<Token>& tokens) {
    header.resize(256);
    std::vector<char> contents(reinterpret_cast<const char*>(header.data()),
                               reinterpret_cast<const char*>(header.data() + 256));
    contents.insert(contents.end(), reinterpret_cast<const char*>(tokens.data()),
                    reinterpret_cast<const char*>(tokens.data() + tokens.size()));
    return write(name, contents);
  }

  static spec::RunPlan plan(const std::vector<std::string>& path, spec::DataFormat format) {
    spec::RunPlan result;
    result.model.vocab = 50257;
    result.data.path = path;
    result.data.format = format;
    return result;
  }

  static std::vector<int64_t> tokens(const Corpus& corpus) {
    std::vector<int64_t> all(static_cast<size_t>(corpus.size()));
    corpus.read(0, all);
    return all;
  }
  static std::vector<int64_t> tokens(const std::string& path, spec::DataFormat format) {
    return tokens(Corpus(plan({path}, format)));
  }

  static std::string refusal(const std::string& path, spec::DataFormat format) {
    try {
      Corpus(plan({path}, format));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  }

  fs::path folder_;
};

using enum spec::DataFormat;

TEST_F(CorpusTest, AFolderIsItsFilesInTheOrderOfTheirPaths) {
  write("b.txt", "B");
  write("a/2.txt", "2");
  write("a/1.txt", "1");
  write("a/empty.txt", "");
  write(".hidden", "x");
  write(".git/config", "y");
  const Corpus corpus(plan({folder_.string()}, bytes));
  EXPECT_THAT(tokens(corpus), ElementsAre('1', '2', 'B'));
  EXPECT_EQ(corpus.describe(), "4 files, 3 tokens");
}

TEST_F(CorpusTest, PathsFollowOneAnotherAsNamed) {
  const std::string first = write("z.txt", "zz\xff"), second = write("a.txt", "a");
  EXPECT_THAT(tokens(Corpus(plan({first, second}, bytes))), ElementsAre('z', 'z', 255, 'a'));
}

TEST_F(CorpusTest, EveryPartReadsAsInTheWhole) {
  std::vector<std::string> paths;
  for (int file = 0; file < 5; ++file)
    paths.push_back(write(text(file), std::string(static_cast<size_t>(file * 3 % 7), 'a' + static_cast<char>(file))));
  const Corpus corpus(plan({paths[1], paths[2], paths[3], paths[4]}, bytes));
  const std::vector<int64_t> all = tokens(corpus);
  for (int64_t begin = 0; begin <= corpus.size(); ++begin) {
    for (int64_t end = begin; end <= corpus.size(); ++end) {
      std::vector<int64_t> part(static_cast<size_t>(end - begin));
      corpus.read(begin, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin)) << begin << " to " << end;
    }
  }
}

TEST_F(CorpusTest, ReadsNanoGptTokens) {
  const std::vector<uint16_t> written = {0, 1, 50256, 7};
  EXPECT_THAT(tokens(write("train.bin", written), tokens_u16), ElementsAre(0, 1, 50256, 7));
}

TEST_F(CorpusTest, ReadsLlmCTokens) {
  EXPECT_THAT(tokens(write_llm_c<uint16_t>("gpt2.bin", {20240520, 1, 3}, {5, 6, 50000}), tokens_u16),
              ElementsAre(5, 6, 50000));
  spec::RunPlan llama = plan({write_llm_c<uint32_t>("llama.bin", {20240801, 7, 2}, {128000, 1})}, tokens_u32);
  llama.model.vocab = 128256;
  EXPECT_THAT(tokens(Corpus(llama)), ElementsAre(128000, 1));
}

TEST_F(CorpusTest, AFolderOfTokensIsItsBinFiles) {
  write("meta.pkl", "abc");
  write("train.bin", std::vector<uint16_t>{1, 2});
  EXPECT_THAT(tokens(folder_.string(), tokens_u16), ElementsAre(1, 2));
}

TEST_F(CorpusTest, RefusesHeadersThatDoNotDescribeTheFile) {
  EXPECT_THAT(refusal(write_llm_c<uint16_t>("a", {20240520, 1, 4}, {1, 2, 3}), tokens_u16),
              HasSubstr("its header promises 4 tokens, which is 1032 bytes with the header; the file has 1030"));
  EXPECT_THAT(refusal(write_llm_c<uint16_t>("b", {20240520, 1, 2}, {1, 2, 3}), tokens_u16),
              HasSubstr("promises 2 tokens"));
  EXPECT_THAT(refusal(write_llm_c<uint16_t>("c", {20240520, 1, -1}, {1, 2, 3}), tokens_u16),
              HasSubstr("promises -1 tokens"));
  EXPECT_THAT(refusal(write_llm_c<uint16_t>("d", {20240520, 2, 3}, {1, 2, 3}), tokens_u16),
              HasSubstr("its header has version 2, only 1 is known"));
  EXPECT_THAT(refusal(write_llm_c<uint32_t>("e", {20240801, 7, 3}, {1, 2, 3}), tokens_u16),
              HasSubstr("set data.format = \"tokens_u32\""));
  EXPECT_THAT(refusal(write("f", std::vector<int32_t>{20240520, 1, 1 << 30}), tokens_u16),
              HasSubstr("the file has 12"));
  EXPECT_THAT(refusal(write("g", std::vector<char>(5, 'x')), tokens_u16),
              HasSubstr("5 bytes are no whole number of 2-byte"));
}

TEST_F(CorpusTest, RefusesTokensOutsideTheVocabulary) {
  std::vector<uint16_t> written(100'000, 1);
  written[70'000] = 50257;
  EXPECT_THAT(refusal(write("train.bin", written), tokens_u16),
              HasSubstr("token 50257 at position 70000 is outside of model.vocab = 50257"));
  EXPECT_THAT(refusal(write("u32.bin", std::vector<uint32_t>{1, 0xffffffff}), tokens_u32),
              HasSubstr("token 4294967295"));
}

TEST_F(CorpusTest, RefusesPathsThatHoldNothing) {
  EXPECT_THAT(refusal((folder_ / "none").string(), bytes), HasSubstr("no such file or folder"));
  EXPECT_THAT(refusal(write("empty", ""), bytes), HasSubstr("the file is empty"));
  EXPECT_THAT(refusal(folder_.string(), bytes), HasSubstr("holds no file with tokens in it"));
  EXPECT_THAT(refusal(folder_.string(), tokens_u16), HasSubstr("holds no file with tokens in it"));
  EXPECT_THAT(refusal("/dev/null", bytes), HasSubstr("is neither a file nor a folder"));
  EXPECT_THAT(refusal(write_llm_c<uint16_t>("header only", {20240520, 1, 0}, {}), tokens_u16),
              HasSubstr("the file is empty"));
}

// DATA-01 with a file: 3 GiB of holes take no space on disk.
TEST_F(CorpusTest, OffsetsBeyond32BitsReadTheRightTokens) {
  const std::string path = write("sparse", "");
  fs::resize_file(path, 3221225472);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(3221225470) << "yz";
  const Corpus corpus(plan({path, write("next", "n")}, bytes));
  EXPECT_EQ(corpus.size(), 3221225473);
  std::vector<int64_t> end(4);
  corpus.read(3221225469, end);
  EXPECT_THAT(end, ElementsAre(0, 'y', 'z', 'n'));
  EXPECT_EQ(corpus.describe(), "2 files, 3221225473 tokens");
}

TEST_F(CorpusTest, SyntheticTokensDependOnSeedAndOffset) {
  spec::RunPlan synthetic = plan({}, spec::DataFormat::synthetic);
  synthetic.model.vocab = 64;
  const auto read = [&](int64_t offset) {
    std::vector<int64_t> tokens(1000);
    Corpus(synthetic).read(offset, tokens);
    return tokens;
  };
  const std::vector<int64_t> first = read(0), later = read(1);
  EXPECT_TRUE(std::equal(first.begin() + 1, first.end(), later.begin()));
  EXPECT_EQ(*std::ranges::max_element(first), 63);
  EXPECT_EQ(*std::ranges::min_element(first), 0);
  synthetic.train.seed = 2;
  EXPECT_NE(read(0), first);
}

}  // namespace
}  // namespace lockstep::data
