#include "link.hpp"

#include "collective.hpp"

namespace drivetrain {

void Link::push(const Outgoing& item) {
  auto at = queue_.end();
  const auto first = queue_.begin() + (is_front_begun_ ? 1 : 0);
  const std::uint64_t sequence = item.collective->sequence();
  while (at != first && (at - 1)->collective->sequence() > sequence) --at;
  queue_.insert(at, item);
}

void Link::announce(std::uint64_t sequence) {
  announced_ = sequence;
  must_announce_ = true;
}

Frame Link::announcement() const {
  Frame frame{};
  frame.magic = frame_magic;
  frame.kind = FrameKind::begun;
  frame.sequence = announced_;
  return frame;
}

}  // namespace drivetrain
