// io/files/files.h - whole files in, whole files out.
//
//   const std::string bytes = read_file("step.lkg");
//   write_file_whole("step.lkg", bytes);
//
// What is written appears whole or not at all, also if the process or the machine stops in between: the bytes
// go to a file beside the wanted one (".<name>.tmp-<process>-<number>"), which is synced to the disk, renamed
// over the wanted one, and then the folder is synced. A file that was there before stays as it was until the
// rename.
//
// links     are followed: the file behind one is replaced, and the link stays. But in a folder where anybody can put
//           links (sticky and writable by all, as /tmp) only those of the folder's owner or one's own are, in reading
//           too; another is refused (FailedPrecondition), and the message names it
// mode      a file that is replaced keeps its permissions, and its owner and group where the process may give them; if
//           not, the new group may do what everybody may. A new file has what the umask leaves, or, if it is
//           NewFile::kPrivate, is for its owner alone (0600); so is one that replaces a stranger's file in a folder like
//           /tmp. Access lists and other attributes are not kept
//
// What is no plain file (a device, a pipe) cannot be replaced and is written to as it is, piece by piece; so
// is whatever a link below /proc stands for: "/dev/stdout" is what standard output was sent to, and what it
// holds is kept.
//
// failure   NotFound where a file or folder is missing, FailedPrecondition where the path or its permissions forbid
//           it, InvalidArgument for a file above the limit, otherwise Error with kUnavailable (a full disk); all name
//           the path. A failed write removes its temporary file.
//
// Thread safety: functions from any thread; two writers of one path replace each other's whole file, the last
// wins. A WholeFile belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/core/export.h"
#include "lockstep/core/read_limits.h"

namespace lockstep {

// The bytes of a file, or of a pipe until its end. A file above limits.file_bytes is refused before memory is
// taken; what does not tell its size (a pipe, a device, a file of /proc) is read up to limits.base_bytes.
LOCKSTEP_API std::string read_file(const std::filesystem::path& path, const ReadLimits& limits = {});
// What is still to come from standard input: of a file what nobody has read yet. It stays open.
LOCKSTEP_API std::string read_standard_input(const ReadLimits& limits = {});

// The folder, and those above it that are missing; each that is made is synced, as a file would be.
LOCKSTEP_API void make_folders(const std::filesystem::path& folder);

// Who may read a file that was not there before.
enum class NewFile : std::uint8_t {
  kByUmask,
  kPrivate,  // its owner alone
};

// The folder must exist.
LOCKSTEP_API void write_file_whole(const std::filesystem::path& path, std::string_view bytes,
                                   NewFile kind = NewFile::kByUmask);

// The same for bytes that come piece by piece: append(), then commit(). Destroyed without a commit, nothing
// is left.
class LOCKSTEP_API WholeFile {
 public:
  explicit WholeFile(const std::filesystem::path& path, NewFile kind = NewFile::kByUmask);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void append(std::string_view bytes);
  void commit();  // once; append() is over then

 private:
  std::filesystem::path path_;  // behind links
  std::string name_;            // of the file in its folder
  std::string temporary_;       // likewise; empty: the file is written as it is
  int folder_ = -1;
  int descriptor_ = -1;
};

// "step.lkg" for ".step.lkg.tmp-123-0": what a temporary file of write_file_whole or WholeFile, perhaps left
// behind by a process that was killed, was to become. Empty for the name of any other file.
LOCKSTEP_API std::string_view name_behind_temporary(std::string_view filename);

}  // namespace lockstep
