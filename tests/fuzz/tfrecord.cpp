// Refused, or records that give the same file when they are written; the same from any position.
#include "lockstep/io/formats/tfrecord.h"

#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz_file.h"

using namespace lockstep;
using testing::finding;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::filesystem::path& path = testing::fuzz_file(data, size);
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  bool refused = false;
  try {
    const auto records = testing::read_twice(*open_tfrecord(path));
    std::string written;
    for (const std::string& record : records) append_tfrecord(written, record);
    const bool packed = !bytes.empty() && written != bytes && (bytes[0] == '\x1f' || (bytes[0] & 0x0F) == 8);
    if (written != bytes && !packed) finding("records that are not those of the file");
  } catch (const Error&) {
    refused = true;
  }
  const auto reader = open_tfrecord(path, {.ignore_errors = true});
  std::string record;
  while (reader->next(record)) {
  }
  if (refused != (reader->dropped() > 0)) finding("damage is not counted");
  return 0;
}
