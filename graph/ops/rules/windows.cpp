// graph/ops/rules/windows.cpp - how the attributes of convolution and pooling say where windows lie.
#include "lockstep/graph/ops/rules/internal/windows.h"

#include <algorithm>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep::internal {

std::vector<AttributeSpec> window_attributes() {
  return {{"strides", AttributeType::kInts},
          {"padding", AttributeType::kString},
          {"pads", AttributeType::kInts, false}};
}

std::vector<Attribute> window_values(const Extents2d& strides, const Padding& padding) {
  std::vector<Attribute> attributes;
  attributes.push_back({"strides", std::vector<std::int64_t>(strides.begin(), strides.end())});
  switch (padding.kind) {
    case Padding::Kind::kValid: attributes.push_back({"padding", std::string("valid")}); break;
    case Padding::Kind::kSame: attributes.push_back({"padding", std::string("same")}); break;
    case Padding::Kind::kExplicit:
      attributes.push_back({"padding", std::string("explicit")});
      attributes.push_back(
          {"pads", std::vector<std::int64_t>(padding.extents.begin(), padding.extents.end())});
      break;
  }
  return attributes;
}

Padding padding_of(const NodeView& node) {
  const std::string& padding = node.get<std::string>("padding");
  const auto* pads = node.find<std::vector<std::int64_t>>("pads");
  if (pads != nullptr && padding != "explicit")
    NodeView::fail("pads are given with padding=\"explicit\" only");
  if (padding == "valid") return Padding::valid();
  if (padding == "same") return Padding::same();
  if (padding != "explicit") {
    NodeView::fail(str("padding must be \"same\", \"valid\" or \"explicit\", got \"", padding, "\""));
  }
  if (pads == nullptr || pads->size() != 4 || std::ranges::min(*pads) < 0) {
    NodeView::fail("explicit padding needs pads=[top, bottom, left, right], each 0 or more");
  }
  return Padding::of((*pads)[0], (*pads)[1], (*pads)[2], (*pads)[3]);
}

Extents2d extents_of(const NodeView& node, std::string_view attribute, Extents2d fallback) {
  const auto* values = node.find<std::vector<std::int64_t>>(attribute);
  if (values == nullptr) return fallback;
  if (values->size() != 2 || (*values)[0] < 1 || (*values)[1] < 1) {
    NodeView::fail(str(attribute, " must be two numbers, for rows and columns, each 1 or more"));
  }
  return {(*values)[0], (*values)[1]};
}

std::array<kernels::WindowAxis, 2> windows_of(const NodeView& node, Extents2d in, Extents2d size,
                                              Extents2d dilations) {
  const Extents2d strides = extents_of(node, "strides", {1, 1});
  const Padding padding = padding_of(node);
  std::array<kernels::WindowAxis, 2> axes;
  for (std::size_t i = 0; i < 2; ++i) {
    kernels::WindowAxis& axis = axes[i];
    axis = {in[i], kUnknown, size[i], strides[i], dilations[i], 0};
    const std::int64_t after = padding.extents[2 * i + 1];
    axis.before = padding.extents[2 * i];
    if (in[i] == kUnknown || size[i] == kUnknown) continue;
    const char* what = i == 0 ? "rows" : "columns";
    const auto does_not_fit = [&](std::int64_t window) {
      NodeView::fail(str("a window of ", window, " ", what, " does not fit into an image of ", in[i], " ",
                         what, axis.before > 0 || after > 0 ? " with its padding" : "",
                         "; use a smaller window or more padding"));
    };
    if (size[i] < 1 || in[i] < 1) does_not_fit(size[i]);
    const std::int64_t reach = checked_add(checked_mul(size[i] - 1, dilations[i], "a window"), 1, "a window");
    if (axis.before >= reach || after >= reach) {
      NodeView::fail(str("padding of ", std::max(axis.before, after), " ", what, " would leave windows of ",
                         reach, " without an element of the image"));
    }
    if (padding.kind == Padding::Kind::kSame) {
      axis.out = in[i] / strides[i] + (in[i] % strides[i] == 0 ? 0 : 1);
      axis.before = std::max<std::int64_t>((axis.out - 1) * strides[i] + reach - in[i], 0) / 2;
    } else {
      const std::int64_t room = in[i] - reach + axis.before + after;
      axis.out = room < 0 ? 0 : room / strides[i] + 1;
    }
    if (axis.out < 1) does_not_fit(reach);
  }
  return axes;
}

}  // namespace lockstep::internal
