// graph/ops/rules/internal/windows.h - how the attributes of convolution and pooling say where windows lie.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lockstep/core/kernels/window.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/ops/convolution.h"

namespace lockstep::internal {

// The attributes `strides`, `padding` and `pads`, for an OpDef; and their values, for a node.
std::vector<AttributeSpec> window_attributes();
std::vector<Attribute> window_values(const Extents2d& strides, const Padding& padding);
Padding padding_of(const NodeView& node);
Extents2d extents_of(const NodeView& node, std::string_view attribute, Extents2d fallback);

// The windows along both axes of an image of these extents. Unknown extents (kUnknown) give unknown outputs.
// Fails, saying what to do, if no window fits or an attribute makes no sense.
std::array<kernels::WindowAxis, 2> windows_of(const NodeView& node, Extents2d in, Extents2d size,
                                              Extents2d dilations);

}  // namespace lockstep::internal
