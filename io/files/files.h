// io/files/files.h - whole files in, whole files out.
//
//   const std::string bytes = read_file("step.lkg");
//   write_file_whole("step.lkg", bytes);
//
// A file that is written appears whole or not at all, even if the process or the machine stops in between:
// the bytes go to a temporary file beside it (".<name>.tmp-<process>-<number>"), which is synced to the disk
// and renamed over it; then the folder is synced. A file that was there before stays as it was until the
// rename.
//
// links     are followed: the file that a link leads to is replaced, and the link stays. In a folder where
//           anybody can put links (sticky and writable by all, like /tmp) only links of the folder's owner
//           and one's own are followed, in reading too; any other link is refused (FailedPrecondition), and
//           the message names it
// mode      a file that is replaced keeps its permissions, and its owner and group if the process may set
//           them; if not, the new group gets no more than everybody has. A new file has the permissions that
//           the umask leaves, or is for its owner alone (0600) with NewFile::kPrivate; so is a file that
//           replaces a stranger's in a folder like /tmp. Access lists and other attributes are not kept
//
// A path that is not a plain file (a device, a pipe) cannot be replaced and is written to directly, piece by
// piece. So is the target of a link below /proc: "/dev/stdout" is whatever standard output was sent to, and
// its contents are kept.
//
// failure   NotFound if a file or folder is missing, FailedPrecondition if the path or its permissions forbid
//           it, InvalidArgument for a file above the limit, otherwise Error with kUnavailable (a full disk);
//           all name the path. A failed write removes its temporary file.
//
// Thread safety: functions from any thread; two writers of one path replace each other's whole file, the last
// wins. A WholeFile belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/read_limits.h"

namespace lockstep {

// The bytes of a file, or of a pipe until its end. A file above limits.file_bytes is refused before memory is
// allocated; a source that does not tell its size (a pipe, a device, a file of /proc) is read up to
// limits.base_bytes.
LOCKSTEP_API std::string read_file(const std::filesystem::path& path, const ReadLimits& limits = {});
// The rest of standard input: of a file, the part that nobody has read yet. Standard input stays open.
LOCKSTEP_API std::string read_standard_input(const ReadLimits& limits = {});

// Makes the folder, and those above it that are missing; each new folder is synced, as a file would be.
LOCKSTEP_API void make_folders(const std::filesystem::path& folder);

// Who may read a file that was not there before.
enum class NewFile : std::uint8_t {
  kByUmask,
  kPrivate,  // its owner alone
};

// The folder must exist.
LOCKSTEP_API void write_file_whole(const std::filesystem::path& path, std::string_view bytes,
                                   NewFile kind = NewFile::kByUmask);

// The same for bytes that come piece by piece: append(), then commit(). If it is destroyed without a commit,
// it leaves nothing behind.
class LOCKSTEP_API WholeFile {
 public:
  explicit WholeFile(const std::filesystem::path& path, NewFile kind = NewFile::kByUmask);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void append(std::string_view bytes);
  void commit();  // once; no append() after it

 private:
  std::filesystem::path path_;  // after following links
  std::string name_;            // of the file in its folder
  std::string temporary_;       // likewise; empty: the file is written to directly
  int folder_ = -1;
  int descriptor_ = -1;
};

// The name that a temporary file of write_file_whole or WholeFile was to get: "step.lkg" for
// ".step.lkg.tmp-123-0". A killed process may leave such files behind. Empty for the name of any other file.
LOCKSTEP_API std::string_view name_behind_temporary(std::string_view filename);

}  // namespace lockstep
