// Random programs on the strict double of the CUDA driver, through the driver that is
// used on a GPU: no wrong byte, no leak, no wait without an end.
//
// Usage: check_random [--operations N] [--seed S] [--devices D] [--threads T]
//                     [--fill nothing|ends|all] [--without NAMES] [--episode E]
//                     [--patience SECONDS]
//
// A seed gives episodes of some thousand operations, each under conditions of its own:
// how much memory, which limits, captures, streams that come and go, refusals of the
// driver. `--without` leaves some out, as in "captures,external": captures, external,
// others, mapped, ahead, refusals, sleeps. `--episode` runs just one episode, to try
// again what went wrong there; with several threads no run is like another.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "random/program.hpp"

using namespace drivetrain;

namespace {

constexpr std::uint64_t kEpisode = 5000;

struct Settings {
  std::uint64_t operations = 100'000;
  std::uint64_t seed = 1;
  int devices = 2;
  unsigned threads = 1;
  Fill fill = Fill::kEnds;
  std::string without;
  long episode = -1;

  bool has(const char* condition) const {
    return without.find(condition) == std::string::npos;
  }
  long patience_s = 60;
};

[[noreturn]] void fail_usage(const char* argument) {
  std::fprintf(stderr, "unknown or incomplete: %s\n", argument);
  std::exit(2);
}

Fill fill_of(const std::string& name) {
  if (name == "nothing") {
    return Fill::kNothing;
  }
  if (name == "all") {
    return Fill::kAll;
  }
  if (name != "ends") {
    fail_usage(name.c_str());
  }
  return Fill::kEnds;
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = argv[i + 1];
    const std::uint64_t number = std::strtoull(value, nullptr, 10);
    if (name == "--operations") {
      settings.operations = number;
    } else if (name == "--seed") {
      settings.seed = number;
    } else if (name == "--devices") {
      settings.devices = static_cast<int>(number);
    } else if (name == "--threads") {
      settings.threads = static_cast<unsigned>(number);
    } else if (name == "--fill") {
      settings.fill = fill_of(value);
    } else if (name == "--without") {
      settings.without = value;
    } else if (name == "--episode") {
      settings.episode = static_cast<long>(number);
    } else if (name == "--patience") {
      settings.patience_s = static_cast<long>(number);
    } else {
      fail_usage(argv[i]);
    }
  }
  if (argc % 2 == 0) {
    fail_usage(argv[argc - 1]);
  }
  return settings;
}

Conditions draw_conditions(std::mt19937_64& random, const Settings& settings) {
  Conditions drawn;
  drawn.num_devices = settings.devices;
  drawn.num_chunks = 8 + random() % 56;
  // Page tables need some of it, and may not get it.
  drawn.slack = random() % 3 == 0 ? Bytes{1} << 20 : Bytes{64} << 20;
  constexpr double kHeadrooms[] = {-1.0, 0.0, 0.02, 0.5};
  drawn.options.headroom = kHeadrooms[random() % 4];
  if (random() % 8 == 0 && settings.has("ahead")) {
    drawn.ahead = true;
    drawn.num_chunks = 2048;
    return drawn;
  }
  const Bytes whole = drawn.num_chunks * strict::kChunk;
  const auto chance = [&](const char* condition, unsigned of) {
    return random() % of == 0 && settings.has(condition);
  };
  drawn.options.capacity_bytes = random() % 4 == 0 ? whole / 4 * 3 : 0;
  // Few, so that mappings are evicted as well.
  drawn.options.mapped_bytes = chance("mapped", 4) ? whole / 4 * 5 : 0;
  drawn.captures = chance("captures", 2);
  drawn.external = chance("external", 2);
  drawn.others = chance("others", 2);
  const unsigned refusals = settings.has("refusals") ? random() % 4 : 0;
  drawn.one_refusal = refusals == 1;
  drawn.refused_share = refusals == 2 ? 1 + random() % 1000 : 0;
  // A capture of another thread would be in the way, and who is refused cannot tell
  // whether it sleeps.
  drawn.sleeps = settings.threads == 1 && !drawn.refuses() && chance("sleeps", 2);
  return drawn;
}

std::string describe(const Conditions& conditions) {
  const Options& options = conditions.options;
  return std::to_string(conditions.num_chunks) + " chunks, slack " +
         std::to_string(conditions.slack) + ", headroom " +
         std::to_string(options.headroom) + ", capacity " +
         std::to_string(options.capacity_bytes) + ", mapped " +
         std::to_string(options.mapped_bytes) +
         (conditions.captures ? ", captures" : "") +
         (conditions.external ? ", external" : "") +
         (conditions.sleeps ? ", sleeps" : "") + (conditions.others ? ", others" : "") +
         (conditions.ahead ? ", ahead" : "") +
         (conditions.one_refusal ? ", one refusal" : "") + ", refused share " +
         std::to_string(conditions.refused_share);
}

// One run of random programs, and what there is to say of it.
class Check {
 public:
  explicit Check(const Settings& settings)
      : settings_(settings), ownership_(findings_, settings.fill) {
    strict::configure(settings.devices, Bytes{1} << 30,
                      settings.fill != Fill::kNothing);
    for (int device = 0; device < settings.devices; ++device) {
      // The double is part of this program.
      drivers_.push_back(std::make_unique<CudaDriver>(device, true, ""));
    }
  }

  void run() {
    const std::uint64_t episodes = (settings_.operations + kEpisode - 1) / kEpisode;
    for (std::uint64_t i = 0; i < episodes; ++i) {
      if (settings_.episode < 0 || static_cast<std::uint64_t>(settings_.episode) == i) {
        episode_ = i;
        run_episode(i, std::min(kEpisode, settings_.operations - i * kEpisode));
      }
    }
  }

  int report(const char* hang = "") {
    const strict::Offences offences =
        strict::locked([](strict::State& now) { return now.offences; });
    std::printf("{\"complaints\": %llu, \"first\": [", number(findings_.count()));
    const char* separator = "";
    for (const std::string& line : findings_.first()) {
      std::printf("%s\"%s\"", separator, line.c_str());
      separator = ", ";
    }
    std::printf(
        "], \"hang\": \"%s\", \"operations\": %llu, \"out_of_memory\": %llu, "
        "\"refused\": %llu, \"graphs\": %llu, \"launches\": %llu, \"shared\": %llu, "
        "\"destroyed_streams\": %llu, \"gates\": %llu, \"sleeps\": %llu, "
        "\"dead_streams\": %llu, "
        "\"events\": %llu, \"stolen\": %llu, \"stream_waits\": %llu, "
        "\"returned\": %llu, \"unmapped\": %llu, \"host_waits\": %llu}\n",
        hang, number(happened_.operations), number(happened_.out_of_memory),
        number(happened_.refused), number(happened_.graphs), number(happened_.launches),
        number(happened_.shared), number(happened_.destroyed_streams),
        number(happened_.gates), number(happened_.sleeps),
        number(offences.dead_streams), number(strict::count(strict::Kind::kEvents)),
        number(counters_.stolen), number(counters_.stream_waits),
        number(counters_.returned), number(counters_.unmapped),
        number(counters_.host_waits));
    std::fflush(stdout);
    return findings_.count() == 0 && hang[0] == '\0' ? 0 : 1;
  }

  // Ends the process when nothing goes on any more.
  void watch() {
    std::uint64_t last = 0;
    for (long idle = 0;; ++idle) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      const std::uint64_t now = progress_.load(std::memory_order_relaxed);
      idle = now == last ? idle : 0;
      last = now;
      if (idle >= settings_.patience_s) {
        std::printf("{\"hang\": \"episode %llu goes on no more\"}\n", number(episode_));
        std::fflush(stdout);
        _exit(3);
      }
    }
  }

 private:
  static unsigned long long number(std::uint64_t value) { return value; }

  void run_episode(std::uint64_t index, std::uint64_t operations) {
    findings_.begin_episode(index);
    const std::uint64_t seed = settings_.seed * 1'000'003 + index;
    std::mt19937_64 random(seed);
    const Conditions conditions = draw_conditions(random, settings_);
    if (settings_.episode >= 0) {
      std::fprintf(stderr, "%s\n", describe(conditions).c_str());
    }
    begin(conditions, seed);
    Episode episode{conditions, findings_, ownership_, std::make_shared<ProcessState>(),
                    {},         progress_, {},         {},
                    {}};
    episode.next_name = 1;
    for (const auto& driver : drivers_) {
      episode.allocators.push_back(
          std::make_unique<Allocator>(*driver, conditions.options, episode.process));
    }
    std::vector<std::unique_ptr<Program>> programs;
    for (unsigned thread = 0; thread < settings_.threads; ++thread) {
      programs.push_back(std::make_unique<Program>(episode, thread, seed));
    }
    for (const char* function : kRefusable) {
      strict::refuse(function, 0, 0, conditions.refused_share, strict::kOutOfMemory);
    }
    std::vector<std::thread> threads;
    for (unsigned thread = 1; thread < settings_.threads; ++thread) {
      threads.emplace_back(
          [&, thread] { programs[thread]->run(operations / settings_.threads); });
    }
    programs[0]->run(operations / settings_.threads);
    for (std::thread& thread : threads) {
      thread.join();
    }
    strict::refuse_nothing();
    for (const auto& program : programs) {
      program->end();
      happened_.add(program->happened());
    }
    end(episode);
  }

  void begin(const Conditions& conditions, std::uint64_t seed) {
    strict::locked([&](strict::State& now) {
      now.total = conditions.num_chunks * strict::kChunk + conditions.slack;
      now.random.seed(seed);
      now.next_stream = 1;
      now.offences.hangs = 0;
      now.offences.first_hang.clear();
      now.offences.spoilt = 0;
    });
  }

  void end(Episode& episode) {
    complain_if(!strict::finish_all(), "work is left that can never be done");
    for (const TenantRef& tenant : episode.handed_over) {
      strict::locked([&](strict::State&) { ownership_.disown(*tenant); });
      episode.allocators[static_cast<std::size_t>(tenant->device)]->free(tenant->at);
    }
    for (const auto& allocator : episode.allocators) {
      allocator->trim();
      const Counters counters = allocator->counters();
      add(counters);
      complain_if(counters.live_bytes != 0 || counters.active_bytes != 0,
                  "bytes are counted as live in the end");
      complain_if(counters.reserved_bytes != 0, "memory is reserved in the end");
    }
    complain_if(strict::count(strict::Kind::kMemory) != 0, "an allocation leaks");
    complain_if(strict::count(strict::Kind::kMappings) != 0, "a mapping leaks");
    episode.allocators.clear();
    complain_if(strict::count(strict::Kind::kReservations) != 0, "a reservation leaks");
    strict::locked([&](strict::State& now) {
      const strict::Offences& offences = now.offences;
      complain_if(offences.hangs != 0,
                  "a wait that cannot end: " + offences.first_hang);
      complain_if(offences.spoilt != 0, "the allocator spoilt a capture");
      complain_if(offences.dead_events != 0, "an event was used after its end");
      complain_if(offences.dead_memory != 0, "memory was used after its end");
      now.streams.clear();
      now.handles.clear();
      now.dead_handles.clear();
      for (strict::Device& device : now.devices) {
        device.legacy = 0;
      }
    });
  }

  void complain_if(bool wrong, const std::string& what) {
    if (wrong) {
      findings_.complain(what);
    }
  }

  void add(const Counters& counters) {
    counters_.stolen += counters.stolen;
    counters_.stream_waits += counters.stream_waits;
    counters_.returned += counters.returned;
    counters_.unmapped += counters.unmapped;
    counters_.host_waits += counters.host_waits;
  }

  Settings settings_;
  Findings findings_;
  Ownership ownership_;
  std::vector<std::unique_ptr<CudaDriver>> drivers_;
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<std::uint64_t> episode_{0};
  Happened happened_;
  Counters counters_;
};

}  // namespace

int main(int argc, char** argv) {
  Check check(parse(argc, argv));
  std::thread([&] { check.watch(); }).detach();
  check.run();
  // The watch may still look.
  const int code = check.report();
  _exit(code);
}
