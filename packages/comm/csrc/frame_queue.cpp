#include "frame_queue.hpp"

#include <cstring>
#include <stdexcept>

namespace drivetrain {
namespace {

std::uint64_t padded(std::uint64_t payload) {
  return (sizeof(Frame) + payload + 63) & ~std::uint64_t{63};
}

}  // namespace

bool FrameQueue::write(const Frame& frame, const std::vector<iovec>& payload) {
  std::uint64_t at = state->written.load(std::memory_order_relaxed);
  const std::uint64_t need = padded(frame.size);
  const std::uint64_t until_end = queue_bytes - at % queue_bytes;
  const std::uint64_t skip = need > until_end ? until_end : 0;
  const auto has_room = [&] {
    return at + skip + need - state->read.load() <= queue_bytes;
  };
  if (!has_room()) {
    state->writer_waits.store(1);
    if (!has_room()) return false;
    state->writer_waits.store(0);
  }
  if (skip > 0) {
    Frame gap{};
    gap.magic = frame_magic;
    gap.kind = FrameKind::skip;
    std::memcpy(data + at % queue_bytes, &gap, sizeof gap);
    at += skip;
  }
  char* to = data + at % queue_bytes;
  std::memcpy(to, &frame, sizeof frame);
  to += sizeof frame;
  for (const iovec& part : payload) {
    std::memcpy(to, part.iov_base, part.iov_len);
    to += part.iov_len;
  }
  state->written.store(at + need);
  return true;
}

bool FrameQueue::must_ring_reader() {
  return state->reader_sleeps.load() != 0 && state->reader_sleeps.exchange(0) != 0;
}

bool FrameQueue::must_ring_writer() {
  return state->writer_waits.load() != 0 && state->writer_waits.exchange(0) != 0;
}

const Frame* FrameQueue::front(const char*& payload) {
  std::uint64_t at = state->read.load(std::memory_order_relaxed);
  const std::uint64_t end = state->written.load();
  if (at == end) return nullptr;
  const auto* frame = reinterpret_cast<const Frame*>(data + at % queue_bytes);
  if (frame->magic == frame_magic && frame->kind == FrameKind::skip) {
    at += queue_bytes - at % queue_bytes;
    state->read.store(at);
    if (at == end) return nullptr;
    frame = reinterpret_cast<const Frame*>(data);
  }
  if (frame->magic != frame_magic || padded(frame->size) > end - at ||
      padded(frame->size) > queue_bytes - at % queue_bytes)
    throw std::runtime_error("what lies in the shared memory is no frame");
  payload = reinterpret_cast<const char*>(frame + 1);
  return frame;
}

void FrameQueue::pop() {
  const std::uint64_t at = state->read.load(std::memory_order_relaxed);
  const auto* frame = reinterpret_cast<const Frame*>(data + at % queue_bytes);
  state->read.store(at + padded(frame->size));
}

bool FrameQueue::prepare_sleep() {
  state->reader_sleeps.store(1);
  if (state->read.load(std::memory_order_relaxed) == state->written.load()) return true;
  state->reader_sleeps.store(0);
  return false;
}

}  // namespace drivetrain
