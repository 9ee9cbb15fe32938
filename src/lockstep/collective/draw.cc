#include "lockstep/collective/draw.h"

#include <algorithm>
#include <map>

#include "lockstep/base/text.h"

namespace lockstep::collective {
namespace {

constexpr size_t kWidth = 100;  // of a line of messages

// 0 -> a, ..., 25 -> z, 26 -> A, ...; ranks beyond share '*'.
char letter(int rank) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  return static_cast<size_t>(rank) < kLetters.size() ? kLetters[static_cast<size_t>(rank)] : '*';
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

class Picture {
 public:
  explicit Picture(const Program& program)
      : program_(program),
        shows_values_(division(program.operation) != Division::per_pair),
        values_(static_cast<size_t>(program.ranks), std::vector<std::string>(static_cast<size_t>(program.pieces))) {
    for (int rank = 0; rank < program.ranks; ++rank) {
      const Held& input = program.held(rank, Buffer::input);
      for (int slot = 0; slot < input.count; ++slot) value(rank, input.first + slot * input.stride) = letter(rank);
    }
  }

  std::string draw() {
    std::string result = title();
    if (shows_values_) result += "\nbefore\n" + grid();
    for (int round = 0; round < program_.rounds; ++round) {
      result += text("\nround ", round, "\n", messages(round));
      take(round);
      if (shows_values_) result += grid();
    }
    return result;
  }

 private:
  std::string& value(int rank, int piece) { return values_[static_cast<size_t>(rank)][static_cast<size_t>(piece)]; }

  std::string title() const {
    std::string result = text(program_.algorithm, " ", name(program_.operation), ", ", program_.ranks, " ranks");
    if (has_root(program_.operation)) result += text(", root ", program_.root);
    if (program_.rounding != Rounding::none) {
      result += program_.rounding == Rounding::once ? ", rounded once" : ", rounded per hop";
    }
    return result + "\n";
  }

  std::string label(const Chunk& chunk) const {
    const auto one = [&](int piece) {
      return shows_values_ ? std::to_string(piece) : text(piece / program_.ranks, ">", piece % program_.ranks);
    };
    return chunk.run == 1 ? one(chunk.piece) : text(one(chunk.piece), "..", one(chunk.piece + chunk.run - 1));
  }

  template <typename Visit>
  void for_each_arrival(int round, Visit visit) const {
    for (int rank = 0; rank < program_.ranks; ++rank) {
      for (const Step& step : program_.steps_by_rank[static_cast<size_t>(rank)]) {
        const bool arrives = step.kind == Step::Kind::receive || step.kind == Step::Kind::receive_reduce;
        if (step.round == round && arrives) visit(rank, step);
      }
    }
  }

  std::string messages(int round) const {
    std::multimap<int, std::string> by_sender;
    size_t width = 0;
    for_each_arrival(round, [&](int rank, const Step& step) {
      const bool adds = step.kind == Step::Kind::receive_reduce;
      std::string message = text(step.peer, adds ? " ==" : " --", label(step.target), adds ? "==> " : "--> ", rank);
      width = std::max(width, message.size());
      by_sender.emplace(step.peer, std::move(message));
    });
    if (by_sender.empty()) return "  copies inside ranks\n";
    std::string result, line;
    for (const auto& [sender, message] : by_sender) {
      if (!line.empty() && line.size() + width + 4 > kWidth) {
        result += line + "\n";
        line.clear();
      }
      line = line.empty() ? "  " + message
                          : padded(line, (line.size() - 2 + width) / (width + 4) * (width + 4) + 2) + message;
    }
    return result + line + "\n";
  }

  void take(int round) {
    const std::vector<std::vector<std::string>> before = values_;
    for_each_arrival(round, [&](int rank, const Step& step) {
      for (int piece = step.target.piece; shows_values_ && piece < step.target.piece + step.target.run; ++piece) {
        const std::string& came = before[static_cast<size_t>(step.peer)][static_cast<size_t>(piece)];
        std::string& own = value(rank, piece);
        own = step.kind == Step::Kind::receive_reduce ? own + came : came;
        std::ranges::sort(own);
      }
    });
  }

  std::string grid() {
    const size_t longest = reduces(program_.operation) ? static_cast<size_t>(program_.ranks) : 1;
    const size_t width = std::max(longest, std::to_string(program_.pieces - 1).size()) + 2;
    std::string result = "  piece    ";
    for (int piece = 0; piece < program_.pieces; ++piece) result += padded(std::to_string(piece), width);
    result = trimmed(result);
    for (int rank = 0; rank < program_.ranks; ++rank) {
      std::string line = padded(text("  rank ", rank), 11);
      for (int piece = 0; piece < program_.pieces; ++piece) {
        const std::string& own = value(rank, piece);
        line += padded(own.empty() ? "." : own, width);
      }
      result += trimmed(line);
    }
    return result;
  }

  static std::string trimmed(std::string line) {
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  }

  const Program& program_;
  bool shows_values_;
  std::vector<std::vector<std::string>> values_;  // [rank][piece]
};

}  // namespace

std::string draw(const Program& program) {
  return Picture(program).draw();
}

}  // namespace lockstep::collective
