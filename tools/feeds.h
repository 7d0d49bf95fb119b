// tools/feeds.h - values for placeholders, from files and from the command line.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::tools {

using Feeds = std::map<std::string, Tensor, std::less<>>;

// Each text is "name=file.npy", "name=file.npz" (the entry of that name), "name=-" (either of them on
// standard input), "name=f32[2]{1.0, 2.0}", or "file.npz" (all of its entries). Throws UsageError for a text
// that is none of these, a name that comes twice or a second use of standard input, and what reading throws.
Feeds read_feeds(const std::vector<std::string>& texts);

// The rows of a batch, one slice for each replica: the first (rows mod n) slices have one row more than the
// others. A replica without rows gets a tensor of zero rows. The slices share the batch's memory. Throws
// InvalidArgument for a scalar.
std::vector<Tensor> split_rows(const Tensor& batch, std::size_t replicas);

}  // namespace lockstep::tools
