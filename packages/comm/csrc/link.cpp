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

}  // namespace drivetrain
