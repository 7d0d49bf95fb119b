// core/communicators/rendezvous.cpp - where participants that do not know each other yet leave word for one another.
#include "lockstep/core/communicators/rendezvous.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include <unistd.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kLongestKey = 200;

std::string checked(std::string_view key) {
  const auto is_allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("._-/").find(c) != std::string_view::npos;
  };
  if (key.empty() || key.size() > kLongestKey || !std::ranges::all_of(key, is_allowed))
    throw InvalidArgument(str("Rendezvous: '", key.substr(0, 40),
                              "' is no key: expected 1 to 200 letters, digits, '.', '_', '-' and '/'"));
  return std::string(key);
}

std::string file_of(const std::string& key) {
  std::string name = "key." + key;
  std::ranges::replace(name, '/', '+');
  return name;
}

}  // namespace

Rendezvous::~Rendezvous() = default;

void Rendezvous::set(std::string_view key, std::string_view bytes) {
  if (!put(checked(key), bytes))
    throw FailedPrecondition(str("Rendezvous: '", key, "' is set already; each key is set once"));
}

std::string Rendezvous::get(std::string_view key, Deadline deadline) {
  const std::string wanted = checked(key);
  for (std::string bytes;;) {
    if (look(wanted, &bytes)) return bytes;
    if (deadline && std::chrono::steady_clock::now() >= *deadline)
      throw Error(ErrorCode::kDeadlineExceeded, str("Rendezvous: nobody has set '", key, "' in time"));
    wait_for(wanted, deadline);
  }
}

bool Rendezvous::has(std::string_view key) { return look(checked(key), nullptr); }

FileRendezvous::FileRendezvous(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::filesystem::create_directories(folder_);
}

// A file appears with all of its contents: it is written under another name, and linked to its own if nobody was first.
bool FileRendezvous::put(const std::string& key, std::string_view bytes) {
  static std::atomic<unsigned> files{0};
  const std::string name = file_of(key);
  const std::filesystem::path file = folder_ / name;
  const std::filesystem::path draft = folder_ / str("~", ::getpid(), "-", files.fetch_add(1), "-", name);
  {
    std::ofstream out(draft, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush())
      throw Error(ErrorCode::kUnavailable, str("Rendezvous: cannot write into ", folder_.string()));
  }
  std::error_code error;
  std::filesystem::create_hard_link(draft, file, error);
  std::error_code ignored;
  std::filesystem::remove(draft, ignored);
  if (error && !std::filesystem::exists(file))
    throw Error(ErrorCode::kUnavailable,
                str("Rendezvous: cannot make a file in ", folder_.string(), ": ", error.message()));
  return !error;
}

bool FileRendezvous::look(const std::string& key, std::string* bytes) {
  std::ifstream in(folder_ / file_of(key), std::ios::binary);
  if (!in) return false;
  if (bytes != nullptr) bytes->assign(std::istreambuf_iterator<char>(in), {});
  return true;
}

void FileRendezvous::wait_for(const std::string& /*key*/, Deadline /*deadline*/) {
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

bool InProcessRendezvous::put(const std::string& key, std::string_view bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!values_.emplace(key, bytes).second) return false;
  }
  changed_.notify_all();
  return true;
}

bool InProcessRendezvous::look(const std::string& key, std::string* bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  if (bytes != nullptr) *bytes = found->second;
  return true;
}

void InProcessRendezvous::wait_for(const std::string& key, Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_there = [&] { return values_.contains(key); };
  if (deadline) {
    changed_.wait_until(lock, *deadline, is_there);
  } else {
    changed_.wait(lock, is_there);
  }
}

}  // namespace lockstep
