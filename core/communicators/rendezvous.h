// core/communicators/rendezvous.h - where participants that do not know each other yet leave word for one another.
//
//   FileRendezvous place("/shared/run-42");            // a folder that all processes see
//   place.set("world/address", my_address);            // one of them
//   std::string address = place.get("world/address", deadline_in(60s));
//
// A key is set once and never changed; what is waited for may be set before or after. Keys are short names of letters, digits,
// '.', '_', '-' and '/'. A group that is built again after a failure uses other keys (a generation in their names).
//
// Thread safety: any thread, any process.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/communicators/communicator.h"

namespace lockstep {

class LOCKSTEP_API Rendezvous {
 public:
  virtual ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // Throw InvalidArgument for a key that is none.
  // Throws FailedPrecondition if the key was set before.
  void set(std::string_view key, std::string_view bytes);
  // Waits until the key is set. Throws Error (kDeadlineExceeded).
  std::string get(std::string_view key, Deadline deadline = {});
  bool has(std::string_view key);

 protected:
  Rendezvous() = default;

 private:
  virtual bool put(const std::string& key, std::string_view bytes) = 0;  // false: it was set before
  virtual bool look(const std::string& key, std::string* bytes) = 0;     // false: it is not set
  virtual void wait_for(const std::string& key,
                        Deadline deadline) = 0;  // or until the deadline; may return early
};

// A folder, which is made if it is not there; on a file system that all processes see and that has hard links.
class LOCKSTEP_API FileRendezvous final : public Rendezvous {
 public:
  // Throws std::filesystem::filesystem_error if there can be no such folder.
  explicit FileRendezvous(std::filesystem::path folder);

 private:
  bool put(const std::string& key, std::string_view bytes) override;
  bool look(const std::string& key, std::string* bytes) override;
  void wait_for(const std::string& key, Deadline deadline) override;

  std::filesystem::path folder_;
};

// Between threads of one process.
class LOCKSTEP_API InProcessRendezvous final : public Rendezvous {
 private:
  bool put(const std::string& key, std::string_view bytes) override;
  bool look(const std::string& key, std::string* bytes) override;
  void wait_for(const std::string& key, Deadline deadline) override;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace lockstep
