#include "program.hpp"

#include <stdexcept>
#include <utility>

namespace drivetrain {

Program::Program(std::vector<Step> given, std::int32_t chunks, std::int32_t num_ranks)
    : steps(std::move(given)),
      num_chunks(chunks),
      needs(steps.size()),
      feeds(steps.size()),
      lane_of(steps.size(), no_lane) {
  for (const Step& step : steps) {
    const bool has_peer =
        step.kind == Kind::finish || (step.peer >= 0 && step.peer < num_ranks);
    if (!has_peer || step.chunk < 0 || step.chunk >= num_chunks)
      throw std::invalid_argument("a step names a rank or a chunk that there is not");
  }
  find_needs();
  find_lanes();
}

std::uint32_t Program::lane_from(std::int32_t peer) const {
  for (std::uint32_t i = 0; i < lanes.size(); ++i)
    if (!lanes[i].sends && lanes[i].peer == peer) return i;
  return no_lane;
}

void Program::find_needs() {
  struct Touched {
    std::uint32_t writer = no_lane;
    std::vector<std::uint32_t> readers;
  };
  std::vector<Touched> chunks(static_cast<std::size_t>(num_chunks));
  for (std::uint32_t i = 0; i < steps.size(); ++i) {
    Touched& chunk = chunks[static_cast<std::size_t>(steps[i].chunk)];
    if (chunk.writer != no_lane) needs[i].push_back(chunk.writer);
    if (steps[i].kind == Kind::send) {
      chunk.readers.push_back(i);
    } else {
      needs[i].insert(needs[i].end(), chunk.readers.begin(), chunk.readers.end());
      chunk.readers.clear();
      chunk.writer = i;
    }
    for (const std::uint32_t need : needs[i]) feeds[need].push_back(i);
  }
}

void Program::find_lanes() {
  for (std::uint32_t i = 0; i < steps.size(); ++i) {
    if (steps[i].kind == Kind::finish) continue;
    const bool sends = steps[i].kind == Kind::send;
    std::uint32_t at = 0;
    while (at < lanes.size() &&
           (lanes[at].peer != steps[i].peer || lanes[at].sends != sends))
      ++at;
    if (at == lanes.size()) lanes.push_back({steps[i].peer, sends, {}});
    lanes[at].steps.push_back(i);
    lane_of[i] = at;
  }
}

}  // namespace drivetrain
