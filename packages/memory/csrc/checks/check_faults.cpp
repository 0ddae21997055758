// A device that refuses any call at any time loses nothing: live blocks keep their
// memory to themselves, the counters stay exact, and all of it comes back in the end.
//
// Usage: check_faults OPERATIONS [SEED [CALL]]
//
// Only CALL is refused, such as "unmap"; without one each in its turn. Seeds that are
// even capture graphs as well.

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "../allocator.hpp"
#include "../error.hpp"
#include "faulty_driver.hpp"

using namespace drivetrain;

namespace {

constexpr Bytes kChunk = Bytes{2} << 20;
constexpr std::uint64_t kChunks = 64;
constexpr unsigned kStreams = 3;
constexpr std::array<const char*, 10> kCalls = {
    "extend", "create", "destroy", "map",         "unmap",
    "record", "done",   "wait",    "synchronize", "capturing"};

struct Live {
  Address at;
  Bytes size;
};

class Check {
 public:
  Check(std::uint64_t seed, std::string only)
      : random_(seed),
        only_(std::move(only)),
        captures_(seed % 2 == 0),
        driver_(kChunks, kChunk, seed),
        allocator_(driver_, options(seed)) {}

  void run(std::uint64_t operations) {
    for (std::uint64_t i = 0; i < operations; ++i) {
      if (random_() % 40 == 0) {
        driver_.refuse(only_.empty() ? kCalls[random_() % kCalls.size()] : only_,
                       random_() % 6);
      }
      try {
        operate();
      } catch (const OutOfMemory&) {
        ++out_of_memory_;
      } catch (const DriverError&) {
        ++refused_;
      }
      if (i % 50 == 0) {
        look();
      }
    }
    end();
  }

  int report() const {
    std::printf(
        "{\"complaints\": %llu, \"first\": \"%s\", \"refused\": %llu, "
        "\"out_of_memory\": %llu}\n",
        static_cast<unsigned long long>(driver_.complaints()),
        driver_.first_complaint().c_str(), static_cast<unsigned long long>(refused_),
        static_cast<unsigned long long>(out_of_memory_));
    return driver_.complaints() == 0 ? 0 : 1;
  }

 private:
  static Options options(std::uint64_t seed) {
    Options options;
    options.headroom = seed % 3 == 0 ? -1.0 : 0.02;
    // Few, so that mappings are evicted as well.
    options.mapped_bytes = seed % 4 == 1 ? 80 * kChunk : 0;
    return options;
  }

  void operate() {
    const unsigned kind = random_() % 100;
    if (kind < 48) {
      allocate();
    } else if (kind < 88) {
      free();
    } else if (kind < 94 && !live_.empty()) {
      allocator_.record_stream(live_[random_() % live_.size()].at,
                               random_() % (kStreams + 1));
    } else if (kind == 94) {
      allocator_.trim();
    } else if (captures_) {
      capture(random_() % kStreams);
    }
  }

  void allocate() {
    const Bytes size = random_() % 3 == 0
                           ? 1 + random_() % (kChunk / 4)
                           : (1 + random_() % 24) * (kChunk / 2) + random_() % kChunk;
    const Stream stream = random_() % kStreams;
    const std::uint64_t graph = driver_.is_captured(stream) ? graph_of(stream) : 0;
    const Address at = allocator_.allocate(size, stream, {graph});
    live_.push_back({at, round_up(size, kUnit)});
  }

  void free() {
    if (live_.empty()) {
      return;
    }
    const std::size_t index = random_() % live_.size();
    const Live block = live_[index];
    live_[index] = live_.back();
    live_.pop_back();
    try {
      allocator_.free(block.at);
    } catch (const DriverError&) {
      // A block whose event was refused lives on.
      if (is_live(block.at)) {
        live_.push_back(block);
      }
      throw;
    }
  }

  bool is_live(Address at) {
    const auto block = allocator_.block_around(at);
    return block && block->first == at;
  }

  void capture(Stream stream) {
    if (driver_.is_captured(stream)) {
      driver_.end_capture(stream);
    } else if (random_() % 2 == 0) {
      allocator_.release_graph(graph_of(stream));
    } else {
      driver_.capture(stream);
    }
  }

  static std::uint64_t graph_of(Stream stream) { return stream + 10; }

  void look() {
    std::map<Handle, Address> pages;
    Bytes bytes = 0;
    Address end = 0;
    std::map<Address, Bytes> in_order;
    for (const Live& block : live_) {
      in_order[block.at] = block.size;
    }
    for (const auto& [at, size] : in_order) {
      driver_.complain_if(at < end, "two live blocks overlap");
      end = at + size;
      bytes += size;
      for (Address page = at / kChunk * kChunk; page < end; page += kChunk) {
        const Handle chunk = driver_.mapped_at(page);
        driver_.complain_if(chunk == 0, "a live block has a page that maps nothing");
        const bool alone = pages.emplace(chunk, page).first->second == page;
        driver_.complain_if(!alone, "one chunk lies below two live pages");
      }
    }
    const Counters counters = allocator_.counters();
    driver_.complain_if(counters.live_bytes != bytes, "the live bytes are wrong");
    driver_.complain_if(counters.active_bytes < bytes, "the active bytes are wrong");
    driver_.complain_if(counters.reserved_bytes != driver_.num_chunks() * kChunk,
                        "the reserved bytes are wrong");
  }

  void end() {
    driver_.refuse("", 0);
    for (Stream stream = 0; stream < kStreams; ++stream) {
      driver_.end_capture(stream);
      allocator_.release_graph(graph_of(stream));
    }
    for (const Live& block : live_) {
      allocator_.free(block.at);
    }
    live_.clear();
    allocator_.trim();
    look();
    const Counters counters = allocator_.counters();
    driver_.complain_if(counters.active_bytes != 0, "blocks are left in the end");
    driver_.complain_if(counters.reserved_bytes != 0, "chunks are left in the end");
  }

  std::mt19937_64 random_;
  std::string only_;
  bool captures_;
  FaultyDriver driver_;
  Allocator allocator_;
  std::vector<Live> live_;
  std::uint64_t refused_ = 0;
  std::uint64_t out_of_memory_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t operations =
      argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  Check check(seed, argc > 3 ? argv[3] : "");
  check.run(operations);
  return check.report();
}
