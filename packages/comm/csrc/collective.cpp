#include "collective.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace drivetrain {
namespace {

Geometry geometry_of(const Request& request) {
  const std::uint64_t size = size_of(request.type);
  const std::uint64_t per_segment = request.segment_bytes / size;
  return {request.vector.size() / size, size, request.num_channels,
          request.program->num_chunks, per_segment > 0 ? per_segment : 1};
}

}  // namespace

Collective::Collective(Request request, std::uint64_t sequence, Outbox& outbox)
    : request_(std::move(request)),
      program_(*request_.program),
      geometry_(geometry_of(request_)),
      sequence_(sequence),
      outbox_(outbox),
      num_done_(program_.steps.size() * request_.num_channels),
      lanes_(program_.lanes.size() * request_.num_channels) {
  for (std::uint32_t channel = 0; channel < request_.num_channels; ++channel)
    for (const Step& step : program_.steps)
      num_left_ += geometry_.num_segments(channel, step.chunk);
}

void Collective::start() {
  for (std::uint32_t channel = 0; channel < request_.num_channels; ++channel) {
    for (std::uint32_t lane = 0; lane < program_.lanes.size(); ++lane)
      advance(channel, lane);
    for (std::uint32_t step = 0; step < program_.steps.size(); ++step)
      if (program_.steps[step].kind == Kind::finish) finish(channel, step);
  }
  settle();
}

std::string Collective::mismatch(std::int32_t peer, const Frame& frame) const {
  const std::string rank = "rank " + std::to_string(peer);
  const std::string number = "collective " + std::to_string(sequence_);
  if (frame.total != request_.vector.size())
    return rank + " sends " + std::to_string(frame.total) + " bytes in " + number +
           ", in which this rank has " + std::to_string(request_.vector.size()) +
           ": all ranks must make the same calls in the same order";
  if (frame.type != static_cast<std::uint8_t>(request_.type) ||
      frame.operation != static_cast<std::uint8_t>(request_.operation))
    return rank + " calls " + number + " with another dtype or reduction";
  if (frame.plan != request_.plan || frame.channel >= request_.num_channels)
    return rank + " carries out " + number + " by another algorithm or version (" +
           std::to_string(frame.plan) + ", this rank " + std::to_string(request_.plan) +
           "): all ranks must run the same version with the same settings";
  const std::uint32_t lane = program_.lane_from(peer);
  if (lane == Program::no_lane) return rank + " has no part in " + number;
  return "";
}

bool Collective::land(std::int32_t peer, const Frame& frame, std::vector<iovec>& to) {
  const std::uint32_t lane = program_.lane_from(peer);
  if (!skip_empty(frame.channel, lane)) return false;
  LaneState& now = state(frame.channel, lane);
  const std::uint32_t step = program_.lanes[lane].steps[now.position];
  if (program_.steps[step].kind != Kind::receive || !now.held.empty() ||
      !is_ready(frame.channel, step, now.segment))
    return false;
  const Range at = range(frame.channel, step, now.segment);
  if (at.end - at.begin != frame.size) return false;
  request_.vector.append(at.begin, at.end, to);
  now.is_landing = true;
  return true;
}

void Collective::landed(std::int32_t peer, const Frame& frame) {
  const std::uint32_t lane = program_.lane_from(peer);
  LaneState& now = state(frame.channel, lane);
  const std::uint32_t step = program_.lanes[lane].steps[now.position];
  now.is_landing = false;
  ++now.segment;
  complete(frame.channel, step);
  advance(frame.channel, lane);
  settle();
}

void Collective::deliver(std::int32_t peer, const Frame& frame, const char* payload) {
  const std::uint32_t lane = program_.lane_from(peer);
  if (!skip_empty(frame.channel, lane))
    throw std::runtime_error("rank " + std::to_string(peer) + " sends too much");
  LaneState& now = state(frame.channel, lane);
  const std::uint32_t step = program_.lanes[lane].steps[now.position];
  if (!now.held.empty() || !is_ready(frame.channel, step, now.segment)) {
    now.held.emplace_back(payload, payload + frame.size);
    return;
  }
  apply(frame.channel, step, now.segment++, payload, frame.size);
  complete(frame.channel, step);
  advance(frame.channel, lane);
  settle();
}

Frame Collective::frame_of(const Outgoing& item) const {
  const Range at = range(item.channel, item.step, item.segment);
  return {frame_magic,
          FrameKind::data,
          static_cast<std::uint8_t>(item.channel),
          static_cast<std::uint8_t>(request_.type),
          static_cast<std::uint8_t>(request_.operation),
          request_.plan,
          static_cast<std::uint32_t>(at.end - at.begin),
          sequence_,
          request_.vector.size()};
}

void Collective::payload_of(const Outgoing& item, std::vector<iovec>& to) const {
  const Range at = range(item.channel, item.step, item.segment);
  request_.vector.append(at.begin, at.end, to);
}

void Collective::sent(const Outgoing& item) {
  complete(item.channel, item.step);
  settle();
}

std::uint64_t Collective::num_bytes(const Lane& lane) const {
  std::uint64_t sum = 0;
  for (std::uint32_t channel = 0; channel < request_.num_channels; ++channel)
    for (const std::uint32_t step : lane.steps)
      sum += geometry_.num_bytes(channel, program_.steps[step].chunk);
  return sum;
}

std::uint64_t Collective::num_bytes(const Outgoing& item) const {
  const Range at = range(item.channel, item.step, item.segment);
  return at.end - at.begin;
}

std::vector<std::int32_t> Collective::awaited() const {
  std::vector<std::int32_t> peers;
  for (std::uint32_t lane = 0; lane < program_.lanes.size(); ++lane)
    if (!program_.lanes[lane].sends && needs(program_.lanes[lane].peer))
      peers.push_back(program_.lanes[lane].peer);
  return peers;
}

bool Collective::needs(std::int32_t peer, std::int32_t only) const {
  for (std::uint32_t channel = 0; channel < request_.num_channels; ++channel) {
    if (only != any_channel && only != static_cast<std::int32_t>(channel)) continue;
    for (std::uint32_t lane = 0; lane < program_.lanes.size(); ++lane) {
      if (program_.lanes[lane].peer != peer) continue;
      for (const std::uint32_t step : program_.lanes[lane].steps) {
        const std::uint64_t done = num_done_[channel * program_.steps.size() + step];
        if (done < geometry_.num_segments(channel, program_.steps[step].chunk))
          return true;
      }
    }
  }
  return false;
}

Collective::LaneState& Collective::state(std::uint32_t channel, std::uint32_t lane) {
  return lanes_[channel * program_.lanes.size() + lane];
}

std::uint64_t& Collective::num_done(std::uint32_t channel, std::uint32_t step) {
  return num_done_[channel * program_.steps.size() + step];
}

Range Collective::range(std::uint32_t channel, std::uint32_t step,
                        std::uint64_t segment) const {
  return geometry_.segment(channel, program_.steps[step].chunk, segment);
}

bool Collective::is_ready(std::uint32_t channel, std::uint32_t step,
                          std::uint64_t segment) {
  const auto& needs = program_.needs[step];
  return std::all_of(needs.begin(), needs.end(), [&](std::uint32_t need) {
    return num_done(channel, need) > segment;
  });
}

// Moves a lane to its next step that has a segment left; false if there is none.
bool Collective::skip_empty(std::uint32_t channel, std::uint32_t lane) {
  const auto& steps = program_.lanes[lane].steps;
  LaneState& now = state(channel, lane);
  while (now.position < steps.size()) {
    const std::int32_t chunk = program_.steps[steps[now.position]].chunk;
    if (now.segment < geometry_.num_segments(channel, chunk)) return true;
    ++now.position;
    now.segment = 0;
  }
  return false;
}

void Collective::advance(std::uint32_t channel, std::uint32_t lane) {
  const Lane& way = program_.lanes[lane];
  LaneState& now = state(channel, lane);
  while (skip_empty(channel, lane)) {
    const std::uint32_t step = way.steps[now.position];
    if (!is_ready(channel, step, now.segment)) return;
    if (way.sends) {
      outbox_.push(way.peer, {this, channel, step, now.segment++});
      continue;
    }
    if (now.held.empty() || now.is_landing) return;
    const std::vector<char>& held = now.held.front();
    apply(channel, step, now.segment++, held.data(), held.size());
    now.held.pop_front();
    complete(channel, step);
  }
}

void Collective::finish(std::uint32_t channel, std::uint32_t step) {
  std::uint64_t& done = num_done(channel, step);
  const std::uint64_t count =
      geometry_.num_segments(channel, program_.steps[step].chunk);
  while (done < count && is_ready(channel, step, done)) {
    if (request_.factor != 1.0) {
      const Range at = range(channel, step, done);
      request_.vector.each(at.begin, at.end, [&](char* data, std::uint64_t size) {
        scale(data, size, request_.type, request_.factor);
      });
    }
    complete(channel, step);
  }
}

void Collective::apply(std::uint32_t channel, std::uint32_t step, std::uint64_t segment,
                       const char* payload, std::uint64_t size) {
  const Range at = range(channel, step, segment);
  if (at.end - at.begin != size)
    throw std::runtime_error("a segment of " + std::to_string(size) +
                             " bytes came instead of one of " +
                             std::to_string(at.end - at.begin));
  const bool reduces = program_.steps[step].kind == Kind::reduce;
  request_.vector.each(at.begin, at.end, [&](char* data, std::uint64_t part) {
    if (reduces)
      reduce(data, payload, part, request_.type, request_.operation);
    else
      std::copy_n(payload, part, data);
    payload += part;
  });
}

void Collective::complete(std::uint32_t channel, std::uint32_t step) {
  ++num_done(channel, step);
  --num_left_;
  for (const std::uint32_t next : program_.feeds[step])
    woken_.push_back({channel, next});
}

// A list instead of calls that call each other: chains are as long as there are ranks.
void Collective::settle() {
  while (!woken_.empty()) {
    const Woken next = woken_.back();
    woken_.pop_back();
    if (program_.steps[next.step].kind == Kind::finish)
      finish(next.channel, next.step);
    else
      advance(next.channel, program_.lane_of[next.step]);
  }
}

}  // namespace drivetrain
