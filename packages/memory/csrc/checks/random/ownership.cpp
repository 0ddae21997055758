#include "ownership.hpp"

#include <algorithm>
#include <utility>

namespace drivetrain {

namespace {

template <class A, class B>
bool overlap(const A& one, const B& other) {
  return one.begin < other.end && other.begin < one.end;
}

std::uint64_t pattern(std::uint64_t name) { return name * 0x9E3779B97F4A7C15u; }

std::string describe(const Tenant& tenant) {
  return "block " + std::to_string(tenant.name) + " of " + std::to_string(tenant.size) +
         " bytes at " + std::to_string(tenant.at) + " on stream " +
         std::to_string(tenant.stream) + " of device " + std::to_string(tenant.device) +
         ", graph " + std::to_string(tenant.graph);
}

}  // namespace

void Findings::complain(const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++count_;
  // What follows in the same episode mostly follows from it.
  if (std::exchange(last_, episode_) != episode_ && first_.size() < kMost) {
    first_.push_back("episode " + std::to_string(episode_) + ": " + what);
  }
}

std::uint64_t Findings::count() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return count_;
}

std::vector<std::string> Findings::first() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return first_;
}

std::vector<Piece> Ownership::pieces_of(const strict::State& now,
                                        const Tenant& tenant) {
  std::vector<Piece> pieces;
  const Address end = tenant.at + tenant.size;
  for (Address at = tenant.at; at < end;) {
    const strict::Place place = strict::place_of(now, at);
    if (place.memory == 0) {
      findings_.complain(describe(tenant) + " has a page that is not accessible");
      return {};
    }
    const Bytes most = strict::kChunk - at % strict::kChunk;
    const Bytes bytes = std::min<Bytes>(most, end - at);
    pieces.push_back({at, place.memory, place.offset, place.offset + bytes});
    at += bytes;
  }
  return pieces;
}

void Ownership::own(const strict::State& now, Tenant& tenant) {
  tenant.pieces = pieces_of(now, tenant);
  for (const Piece& piece : tenant.pieces) {
    std::vector<Owner>& owners = sheets_[piece.memory].owners;
    for (const Owner& other : owners) {
      if (overlap(other, piece)) {
        findings_.complain(describe(tenant) + " shares memory with " +
                           describe(*other.tenant));
      }
    }
    owners.push_back({piece.begin, piece.end, &tenant});
  }
}

void Ownership::disown(const Tenant& tenant) {
  for (const Piece& piece : tenant.pieces) {
    std::vector<Owner>& owners = sheets_[piece.memory].owners;
    const auto is_own = [&](const Owner& owner) {
      return owner.tenant == &tenant && owner.begin == piece.begin;
    };
    const auto found = std::find_if(owners.begin(), owners.end(), is_own);
    if (found != owners.end()) {
      *found = owners.back();
      owners.pop_back();
    }
    drop_if_empty(piece.memory);
  }
}

void Ownership::give(const strict::State& now, Task& task) {
  const Tenant& tenant = *task.tenant;
  task.order = next_order_++;
  task.pieces = tenant.graph != 0 ? pieces_of(now, tenant) : tenant.pieces;
  for (const Piece& piece : task.pieces) {
    Sheet& sheet = sheets_[piece.memory];
    for (const Owner& other : sheet.owners) {
      const bool foreign = tenant.graph != 0 && other.tenant->graph != tenant.graph;
      if (foreign && overlap(other, piece)) {
        findings_.complain(describe(tenant) +
                           " is used by its graph and shares memory with " +
                           describe(*other.tenant));
      }
    }
    sheet.uses.push_back({piece.begin, piece.end, &tenant, task.order});
  }
}

void Ownership::run(const strict::State& now, const Task& task) {
  for (const Piece& piece : task.pieces) {
    std::vector<Use>& uses = sheets_[piece.memory].uses;
    for (const Use& other : uses) {
      if (other.tenant != task.tenant.get() && other.order < task.order &&
          overlap(other, piece)) {
        findings_.complain(describe(*task.tenant) + " is used while work is left of " +
                           describe(*other.tenant));
      }
    }
    const auto is_own = [&](const Use& use) {
      return use.order == task.order && use.begin == piece.begin;
    };
    const auto found = std::find_if(uses.begin(), uses.end(), is_own);
    if (found != uses.end()) {
      *found = uses.back();
      uses.pop_back();
    }
    const strict::Place place = strict::place_of(now, piece.at);
    if (place.memory != piece.memory || place.offset != piece.begin) {
      findings_.complain(describe(*task.tenant) +
                         " was unmapped, or mapped anew, while it is used");
    } else if (now.has_bytes) {
      touch(task, piece);
    }
    drop_if_empty(piece.memory);
  }
}

void Ownership::touch(const Task& task, const Piece& piece) {
  auto* const words = reinterpret_cast<std::uint64_t*>(piece.at);
  const std::size_t count = (piece.end - piece.begin) / sizeof(std::uint64_t);
  const std::size_t step = fill_ == Fill::kAll ? 1 : count - 1;
  const std::uint64_t value = pattern(task.tenant->name);
  for (std::size_t i = 0; fill_ != Fill::kNothing && i < count; i += step) {
    if (task.writes) {
      words[i] = value;
    } else if (words[i] != value) {
      findings_.complain(describe(*task.tenant) + " has a wrong byte at " +
                         std::to_string(piece.at + i * sizeof(std::uint64_t)));
      return;
    }
  }
}

void Ownership::drop_if_empty(std::uint64_t memory) {
  const auto found = sheets_.find(memory);
  if (found != sheets_.end() && found->second.owners.empty() &&
      found->second.uses.empty()) {
    sheets_.erase(found);
  }
}

}  // namespace drivetrain
