// graph/cuda/jit.cpp - kernels that are compiled while a plan is made.
#include "lockstep/graph/cuda/internal/jit.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <unistd.h>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/toolkit_libraries.h"

namespace lockstep::internal::cuda {

namespace {

namespace fs = std::filesystem;

constexpr const char* kMagic = "lockstep cubin 1\n";

void check(nvrtcResult status, const char* what) {
  if (status != NVRTC_SUCCESS)
    throw Error(ErrorCode::kInternal, str("NVRTC, ", what, ": ", Nvrtc::get().GetErrorString(status)));
}

class Compilation {
 public:
  explicit Compilation(const std::string& source) {
    check(Nvrtc::get().CreateProgram(&program_, source.c_str(), "kernel.cu", 0, nullptr, nullptr),
          "a new program");
  }
  ~Compilation() { static_cast<void>(Nvrtc::get().DestroyProgram(&program_)); }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  std::string run(int capability, std::string* warnings) {
    const std::string architecture = str("--gpu-architecture=sm_", capability);
    const std::array<const char*, 3> options = {architecture.c_str(), "--std=c++17", "--fmad=false"};
    if (Nvrtc::get().CompileProgram(program_, static_cast<int>(options.size()), options.data()) !=
        NVRTC_SUCCESS)
      throw Error(ErrorCode::kInternal, str("a kernel does not compile: ", log()));
    if (warnings != nullptr) *warnings = log();
    std::size_t bytes = 0;
    check(Nvrtc::get().GetCUBINSize(program_, &bytes), "the size of the code");
    std::string code(bytes, '\0');
    check(Nvrtc::get().GetCUBIN(program_, code.data()), "the code");
    return code;
  }

 private:
  std::string log() {
    std::size_t bytes = 0;
    check(Nvrtc::get().GetProgramLogSize(program_, &bytes), "the size of the log");
    std::string text(bytes, '\0');
    check(Nvrtc::get().GetProgramLog(program_, text.data()), "the log");
    return text.substr(0, text.find('\0'));
  }

  nvrtcProgram program_ = nullptr;
};

// FNV-1a: names a file, whose contents are compared.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

fs::path cache_folder() {
  if (const char* const folder = std::getenv("LOCKSTEP_CACHE")) return folder;  // empty: none
  if (const char* const folder = std::getenv("XDG_CACHE_HOME"); folder != nullptr && *folder != '\0')
    return fs::path(folder) / "lockstep";
  if (const char* const home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return fs::path(home) / ".cache" / "lockstep";
  return {};
}

// What the code belongs to; stands in front of it in the file.
std::string key_of(const std::string& source, int capability) {
  int major = 0, minor = 0;
  check(Nvrtc::get().Version(&major, &minor), "its version");
  return str(kMagic, "sm_", capability, " nvrtc ", major, ".", minor, "\n", source);
}

// Empty: it is not there, or belongs to something else.
std::string read_code(const fs::path& file, const std::string& key) {
  std::ifstream in(file, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in || text.size() <= key.size() + 1 || text.compare(0, key.size() + 1, key + '\0') != 0) return {};
  return text.substr(key.size() + 1);
}

// Under another name first: whoever reads sees all of it or nothing. A cache that cannot be written is none.
void write_code(const fs::path& file, const std::string& key, const std::string& code) {
  std::error_code ignored;
  fs::create_directories(file.parent_path(), ignored);
  static std::atomic<unsigned> written{0};
  fs::path part = file;
  part += str(".", getpid(), ".", written.fetch_add(1), ".part");
  {
    std::ofstream out(part, std::ios::binary);
    out << key << '\0' << code;
    if (!out.flush()) {
      fs::remove(part, ignored);
      return;
    }
  }
  fs::rename(part, file, ignored);
}

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw Error(status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kInternal,
              str(what, ": ", cudaGetErrorString(status)));
}

int capability_of(int card) {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, card), "cudaDeviceGetAttribute");
  return 10 * major + minor;
}

}  // namespace

std::string compile_source(const std::string& source, int capability, std::string* warnings) {
  const fs::path folder = cache_folder();
  if (folder.empty()) return Compilation(source).run(capability, warnings);
  const std::string key = key_of(source, capability);
  std::array<char, 17> name{};
  std::snprintf(name.data(), name.size(), "%016llx", static_cast<unsigned long long>(hash_of(key)));
  const fs::path file = folder / str(name.data(), ".cubin");
  std::string code = read_code(file, key);
  if (!code.empty()) return code;
  code = Compilation(source).run(capability, warnings);
  write_code(file, key, code);
  return code;
}

namespace {

cudaKernel_t load(const std::string& code) {
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  check(cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "loading a kernel");
  check(cudaLibraryGetKernel(&kernel, library, "kernel"), "finding a kernel");
  return kernel;
}

// A kernel that is loaded serves all cards of its kind.
cudaKernel_t find_kernel(const std::string& source, int card) {
  static auto* const loaded =
      new std::map<std::pair<int, std::string>, cudaKernel_t>;  // NOLINT: never destroyed
  static std::mutex mutex;
  const int capability = capability_of(card);
  const std::pair<int, std::string> key(capability, source);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto found = loaded->find(key); found != loaded->end()) return found->second;
  }
  const std::string code = compile_source(source, capability);
  const std::lock_guard<std::mutex> lock(mutex);
  cudaKernel_t& kernel = (*loaded)[key];
  if (kernel == nullptr) kernel = load(code);
  return kernel;
}

}  // namespace

struct JitKernel::State {
  std::string source;
  std::array<std::atomic<cudaKernel_t>, kMostCards> by_card{};
};

namespace {

thread_local std::vector<std::string>* collected = nullptr;

}  // namespace

void collect_sources(std::vector<std::string>* sources) { collected = sources; }

JitKernel::JitKernel(std::string source) : state_(std::make_shared<State>()) {
  if (collected != nullptr) collected->push_back(source);
  state_->source = std::move(source);
}

void JitKernel::launch(Stream& stream, unsigned blocks, unsigned threads, Arguments& arguments) const {
  const cudaStream_t native = lockstep::cuda::native(stream);
  const int card = lockstep::cuda::card_of(stream);
  std::atomic<cudaKernel_t>& kept = state_->by_card.at(static_cast<std::size_t>(card));
  cudaKernel_t kernel = kept.load(std::memory_order_acquire);
  if (kernel == nullptr) {
    kernel = find_kernel(state_->source, card);
    kept.store(kernel, std::memory_order_release);
  }
  std::array<void*, 1> pointers = {arguments.data()};
  lockstep::cuda::check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(threads),
                                         pointers.data(), 0, native),
                        stream, "the launch of a kernel");
}

}  // namespace lockstep::internal::cuda
