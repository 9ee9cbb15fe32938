#include "lockstep/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/atomic_file.h"

namespace lockstep::checkpoint {
namespace {

using at::Tensor;
namespace fs = std::filesystem;

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  // What reading a file of this header and this many bytes of data says; empty when nothing is wrong.
  std::string complaint(const std::string& header, int64_t data_bytes) {
    const uint64_t length = header.size();
    std::string content(sizeof(length), '\0');
    std::memcpy(content.data(), &length, sizeof(length));
    return complaint_of_content(content + header + std::string(static_cast<size_t>(data_bytes), '\1'));
  }

  std::string complaint_of_content(const std::string& content) {
    std::ofstream(file_, std::ios::binary) << content;
    try {
      read_safetensors(file_);
      return "";
    } catch (const CorruptCheckpoint& error) {
      return error.what();
    }
  }

  const fs::path folder_ = fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
  const fs::path file_ = folder_ / "x.safetensors";
};

TEST_F(SafetensorsTest, GivesBackWhatWasWritten) {
  torch::manual_seed(1);
  std::vector<NamedTensor> written;
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar,
                          at::kByte, at::kBool}) {
    written.push_back({std::string("odd.") + c10::toString(type), at::randint(2, {3, 1, 7}).to(type)});
  }
  written.push_back({"scalar", at::scalar_tensor(2.5)});
  written.push_back({"empty", at::empty({0, 4})});
  written.push_back({"transposed", at::randn({5, 3}).t()});
  write_safetensors(file_, written, {{"format", "pt"}, {"step", "7"}});

  std::map<std::string, Tensor> read;
  for (const NamedTensor& named : read_safetensors(file_)) read[named.name] = named.tensor;
  ASSERT_EQ(read.size(), written.size());
  for (const NamedTensor& named : written) {
    const Tensor& tensor = read[named.name];
    EXPECT_EQ(tensor.scalar_type(), named.tensor.scalar_type()) << named.name;
    EXPECT_TRUE(at::equal(tensor, named.tensor)) << named.name;
  }
}

TEST_F(SafetensorsTest, NamesTheDamagedTensor) {
  const auto tensor = [](const std::string& type, const std::string& shape, const std::string& range) {
    return R"({"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + range + "}";
  };
  const std::string good = R"("a":)" + tensor("F32", "[2]", "[0,8]");
  EXPECT_EQ(complaint("{" + good + "}", 8), "");

  const auto with = [&](const std::string& b) { return "{" + good + R"(,"b":)" + b + "}"; };
  const struct {
    std::string header;
    int64_t data_bytes;
    std::string complaint;
  } cases[] = {
      {with(tensor("F32", "[2]", "[4,12]")), 12, "tensor b overlaps the one before it"},
      {with(tensor("F32", "[2]", "[12,20]")), 20, "tensor b leaves 4 bytes unused before it"},
      {with(tensor("F32", "[2]", "[8,16]")), 13, "tensor b ends 3 bytes after the end of the file: truncated"},
      {with(tensor("F32", "[2]", "[8,16]")), 18, "has 2 bytes that belong to no tensor"},
      {with(tensor("F32", "[3]", "[8,16]")), 16, "tensor b has 8 bytes where its shape needs 12"},
      {with(tensor("F32", "[2]", "[16,8]")), 16, "tensor b has no valid byte range"},
      {with(tensor("F32", "[2]", "[8]")), 16, "tensor b has no valid byte range"},
      {with(tensor("F32", "[-2]", "[8,16]")), 16, "tensor b has a shape or byte range that is no list"},
      {with(tensor("F32", "2", "[8,16]")), 16, "tensor b has a shape or byte range that is no list"},
      {with(tensor("F7", "[2]", "[8,16]")), 16, "tensor b has the unknown type \"F7\""},
      {with(tensor("F32", "[4294967296,4294967296]", "[8,16]")), 16, "tensor b has a shape too large"},
      {with("3"), 16, "tensor b lacks dtype, shape or data_offsets"},
      {"[1]", 0, "has a header that is not a JSON object"},
      {"{" + good, 8, "has a header that is not a JSON object"},
  };
  for (const auto& [header, data_bytes, expected] : cases) {
    EXPECT_THAT(complaint(header, data_bytes),
                testing::AllOf(testing::StartsWith(file_.string()), testing::HasSubstr(expected)));
  }
}

TEST_F(SafetensorsTest, EveryTruncationIsFound) {
  write_safetensors(file_, {{"a", at::ones({2, 3})}, {"b", at::ones({5})}});
  const std::string whole = read_file(file_);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(complaint_of_content(whole.substr(0, size)), testing::StartsWith(file_.string())) << size;
  }
}

// Whatever is wrong with a header, reading ends in a message or in tensors that lie within the file.
TEST_F(SafetensorsTest, AnyChangedByteIsSurvived) {
  write_safetensors(file_, {{"a", at::ones({2, 3})}, {"b", at::ones({5})}});
  const std::string whole = read_file(file_);
  int found = 0;
  for (size_t place = 0; place < whole.size(); ++place) {
    for (const int flip : {1, 2, 16, 128}) {
      std::string changed = whole;
      changed[place] = static_cast<char>(changed[place] ^ flip);
      found += complaint_of_content(changed).empty() ? 0 : 1;
    }
  }
  EXPECT_GT(found, 100);
}

TEST_F(SafetensorsTest, AMissingFileIsTheUsersMistake) {
  EXPECT_THROW(read_safetensors(folder_ / "none.safetensors"), InvalidArgument);
}

// A limit on file sizes stands for a full disk: the write fails half way.
TEST_F(SafetensorsTest, AFailedWriteLeavesTheOldFileAndNothingElse) {
  write_safetensors(file_, {{"a", at::ones({4})}});
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 64 * 1024;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    write_safetensors(file_, {{"a", at::zeros({100'000})}});
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(message, testing::HasSubstr("cannot write " + file_.string() + ": File too large"));
  EXPECT_TRUE(at::equal(read_safetensors(file_).front().tensor, at::ones({4})));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace lockstep::checkpoint
