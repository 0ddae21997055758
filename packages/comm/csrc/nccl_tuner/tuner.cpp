#include "tuner.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include "policy.hpp"

namespace drivetrain::nccl {

namespace {

constexpr const char* table_variable = "DRIVETRAIN_COMM_NCCL_TABLE";
constexpr const char* hash_variable = "DRIVETRAIN_COMM_NCCL_TABLE_HASH";

// Without an allocation, since this also tells that memory is exhausted.
void say(Log log, LogLevel level, const char* what, const char* more) {
  if (!log) return;
  char text[1024];
  std::snprintf(text, sizeof text, "drivetrain tuner: %s%s", what, more);
  log(level, log_init | log_tuning, "nccl_tuner/tuner.cpp", __LINE__, "%s", text);
}

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

void check_hash(const std::string& path, const Table& table) {
  const char* wanted = environment(hash_variable);
  if (wanted && table.hash != wanted)
    throw TableError(path + ": its rules must have the hash " + wanted + " of " +
                     hash_variable + ", got " + table.hash);
}

std::string summary(const std::string& path, const Table& table, const Policy& policy,
                    std::size_t ranks, std::size_t nodes) {
  return path + ": " + std::to_string(policy.num_rules()) + " of " +
         std::to_string(table.rules.size()) + " rules are for " +
         std::to_string(ranks) + " ranks on " + std::to_string(nodes) +
         " nodes, hash " + table.hash;
}

}  // namespace

void* start(std::size_t ranks, std::size_t nodes, Log log) noexcept {
  constexpr const char* refusal = "NCCL decides alone: ";
  try {
    const char* variable = environment(table_variable);
    if (!variable) throw TableError(std::string(table_variable) + " is not set");
    const std::string path = variable;
    const Table table = load_table(path);
    check_hash(path, table);
    auto policy = std::make_unique<Policy>(table, ranks, nodes);
    say(log, LogLevel::info, summary(path, table, *policy, ranks, nodes).c_str(), "");
    return policy.release();
  } catch (const std::exception& error) {
    say(log, LogLevel::warn, refusal, error.what());
  } catch (...) {
    say(log, LogLevel::warn, refusal, "the table could not be read");
  }
  return nullptr;
}

Result choose(void* context, int collective, std::size_t bytes, int num_pipe_ops,
              float** costs, int num_algorithms, int num_protocols, int reg_buff,
              int* channels) noexcept {
  if (!context) return Result::success;
  const auto& policy = *static_cast<const Policy*>(context);
  const Choice* choice = policy.find(collective, bytes, num_pipe_ops, reg_buff != 0);
  if (choice)
    apply(*choice, reinterpret_cast<float*>(costs), num_algorithms, num_protocols,
          channels);
  return Result::success;
}

Result finish(void* context) noexcept {
  delete static_cast<Policy*>(context);
  return Result::success;
}

}  // namespace drivetrain::nccl
