#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/trace/chrome.h"
#include "lockstep/trace/recorder.h"

namespace lockstep::trace {
namespace {

TEST(Recorder, KeepsTheNewestInFixedMemory) {
  Recorder recorder(2, 4);
  for (int i = 0; i < 10; ++i) recorder.record(Track::compute, text("event ", i), i, i + 0.5, 0, 0, i);
  const auto events = recorder.events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events.front().name(), "event 6");
  EXPECT_EQ(events.back().microbatch, 9);
  EXPECT_EQ(events.back().rank, 2);
  EXPECT_DOUBLE_EQ(events.back().duration_s, 0.5);
  EXPECT_EQ(recorder.recorded(), 10);
  EXPECT_EQ(recorder.forgotten(), 6);
  EXPECT_EQ(recorder.events(8).size(), 2u);
}

TEST(Recorder, CutsLongNamesAndKeepsTracksApart) {
  Recorder recorder(0, 4);
  recorder.record(Track::communication, std::string(100, 'x'), 0, 1);
  recorder.record(Track::compute, "forward", 0, 1);
  const auto events = recorder.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].track, Track::compute);
  EXPECT_EQ(events[1].name(), std::string(Event::kNameCapacity - 1, 'x'));
}

TEST(Recorder, TakesEventsFromManyThreads) {
  Recorder recorder(0, 1 << 12);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) const Span span(&recorder, Track::compute, "span", 8, 0, i);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(recorder.recorded(), 2000);
  EXPECT_EQ(recorder.events().size(), 2000u);
}

TEST(Chrome, HasATrackPerRankAndOneForItsCommunicationAndReadsBack) {
  std::vector<Event> events;
  for (int rank : {0, 1}) {
    Recorder recorder(rank);
    recorder.record(Track::compute, "forward", 10.0, 10.5, 0, 0, 3);
    recorder.record(Track::communication, "all_reduce \"bucket\" 0", 10.25, 10.75, 4096);
    for (const Event& event : recorder.events()) events.push_back(event);
  }
  std::stringstream file;
  write_chrome(file, events);
  const auto document = nlohmann::json::parse(file.str());
  int names = 0;
  for (const auto& line : document["traceEvents"]) names += line["ph"] == "M";
  EXPECT_EQ(names, 6);

  const auto read = read_chrome(file);
  ASSERT_EQ(read.size(), events.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].name(), events[i].name());
    EXPECT_EQ(read[i].rank, events[i].rank);
    EXPECT_EQ(read[i].track, events[i].track);
    EXPECT_EQ(read[i].bytes, events[i].bytes);
    EXPECT_EQ(read[i].microbatch, events[i].microbatch);
    EXPECT_NEAR(read[i].start_s, events[i].start_s - 10, 1e-9);
    EXPECT_NEAR(read[i].duration_s, events[i].duration_s, 1e-9);
  }
}

TEST(Chrome, RefusesOtherFiles) {
  std::stringstream file("{\"a\": 1}");
  EXPECT_THROW(read_chrome(file), InvalidArgument);
  EXPECT_THROW(write_chrome_file("/nonexistent/trace.json", {}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::trace
