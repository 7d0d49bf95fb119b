// io/state/internal/series_lock.h - one writer at a time for a name in a folder.
//
// The kernel holds the lock (flock on "<folder>/.<name>.lock") as long as the process lives, however it ends;
// the file names the holder, for messages. A file that a killed process left behind is taken over. Two locks
// of one process exclude each other, too. A child that a process forks while it has a lock, and that does not
// call exec, shares the lock until it ends. On file systems without locks (some network ones) everybody gets
// one.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/io/files/internal/place.h"

namespace lockstep::internal {

class SeriesLock {
 public:
  // Takes it over from a process of an earlier generation of the job, which goes on with a file that has no name. Throws
  // FailedPrecondition naming the process that has it, and the errors of io/files/files.h.
  SeriesLock(const std::filesystem::path& folder, const std::string& name, int generation = 0);
  ~SeriesLock();  // removes the file, unless it was taken over
  SeriesLock(const SeriesLock&) = delete;
  SeriesLock& operator=(const SeriesLock&) = delete;

 private:
  Place place_;
  Descriptor file_;
};

}  // namespace lockstep::internal
