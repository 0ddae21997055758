// This project's allocator under replay.

#pragma once

#include <unordered_map>

#include "../allocator.hpp"
#include "subject.hpp"

namespace drivetrain {

class Ours : public Subject {
 public:
  Ours(Driver& driver, Options options)
      : allocator_(driver, options), driver_(driver) {}

  bool allocate(std::uint32_t id, Bytes size, unsigned stream) override;
  void free(std::uint32_t id) override;
  void record_stream(std::uint32_t id, unsigned stream) override;
  Effort effort() override;

 private:
  Allocator allocator_;
  Driver& driver_;
  std::unordered_map<std::uint32_t, Address> addresses_;
};

}  // namespace drivetrain
