// graph/cuda/products/convolution.cpp - convolution and its derivatives.
//
//   images --patches--> [places, kh kw c]  x  filter [kh kw c, out]  =  result [places, out]
//
// Where cuDNN is, it computes what it has a way for (cudnn_convolution.h). Else the windows of some images at a time are laid out
// as rows, and the rest is a product of matrices; where channels come in groups, a thread computes each element. Everything is
// added in the same order each time.
#include <algorithm>
#include <optional>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/products/internal/cudnn_convolution.h"
#include "lockstep/graph/cuda/products/internal/product.h"
#include "lockstep/graph/cuda/products/internal/windows.h"

namespace lockstep::internal::cuda {

namespace {

constexpr std::int64_t kMostPatches = std::int64_t{64} << 20;  // bytes

// How a convolution without groups is cut: some images at a time.
struct Pieces {
  std::int64_t at_a_time, places, depth;  // images; windows of an image; elements of a window
  std::size_t patch_bytes = 0;

  Pieces(const Windows& w, DType dtype)
      : places(w.rows.out * w.columns.out), depth(w.rows.size * w.columns.size * w.channels) {
    const std::int64_t one =
        std::max<std::int64_t>(places * depth * static_cast<std::int64_t>(size_of(dtype)), 1);
    at_a_time = std::clamp<std::int64_t>(kMostPatches / one, 1, std::max<std::int64_t>(w.images, 1));
    patch_bytes = static_cast<std::size_t>(at_a_time * one + 255) / 256 * 256;
  }
  std::size_t room() const { return patch_bytes + FloatProduct::kRoom; }
};

// Element i of the patches: of place i / depth, element i % depth of its window.
constexpr const char* kPatches =
    "    const long long depth = a.kh * a.kw * a.c, place = i / depth, within = i % depth;\n"
    "    const long long channel = within % a.c, kj = within / a.c % a.kw, ki = within / a.c / a.kw;\n"
    "    const long long column = place % a.ow, row = place / a.ow % a.oh, image = place / a.ow / a.oh;\n"
    "    const long long y = row * a.sh - a.ph + ki * a.dh, x = column * a.sw - a.pw + kj * a.dw;\n"
    "    const bool inside = y >= 0 && y < a.ih && x >= 0 && x < a.iw;\n"
    "    PUT(i, inside ? X(((image * a.ih + y) * a.iw + x) * a.c + channel) : T(0));\n";

// Element i of the images, out of what flowed into the patches.
constexpr const char* kOutOfPatches =
    "    const long long channel = i % a.c, x = i / a.c % a.iw, y = i / a.c / a.iw % a.ih, image = i / a.c / "
    "a.iw / a.ih;\n"
    "    const long long depth = a.kh * a.kw * a.c;\n    T sum = 0;\n"
    "    for (long long ki = 0; ki < a.kh; ++ki)\n      for (long long kj = 0; kj < a.kw; ++kj) {\n"
    "        long long row = y + a.ph - ki * a.dh, column = x + a.pw - kj * a.dw;\n"
    "        if (row < 0 || column < 0 || row % a.sh != 0 || column % a.sw != 0) continue;\n"
    "        row /= a.sh; column /= a.sw;\n        if (row >= a.oh || column >= a.ow) continue;\n"
    "        sum += X(((image * a.oh + row) * a.ow + column) * depth + (ki * a.kw + kj) * a.c + channel);\n  "
    "    }\n"
    "    PUT(i, sum);\n";

// With groups: a.c / a.groups channels of the images belong to a.oc / a.groups of the result.
constexpr const char* kForwardInGroups =
    "    const long long out = i % a.oc, column = i / a.oc % a.ow, row = i / a.oc / a.ow % a.oh, image = i / "
    "a.oc / a.ow / a.oh;\n"
    "    const long long in = a.c / a.groups, first = out / (a.oc / a.groups) * in;\n    T sum = 0;\n"
    "    for (long long ki = 0; ki < a.kh; ++ki)\n      for (long long kj = 0; kj < a.kw; ++kj) {\n"
    "        const long long y = row * a.sh - a.ph + ki * a.dh, x = column * a.sw - a.pw + kj * a.dw;\n"
    "        if (y < 0 || y >= a.ih || x < 0 || x >= a.iw) continue;\n"
    "        for (long long c = 0; c < in; ++c)\n"
    "          sum += X(((image * a.ih + y) * a.iw + x) * a.c + first + c) * Y(((ki * a.kw + kj) * in + c) * "
    "a.oc + out);\n      }\n"
    "    PUT(i, sum);\n";
// X is what flows back, Y the filter.
constexpr const char* kInputInGroups =
    "    const long long channel = i % a.c, x = i / a.c % a.iw, y = i / a.c / a.iw % a.ih, image = i / a.c / "
    "a.iw / a.ih;\n"
    "    const long long in = a.c / a.groups, outs = a.oc / a.groups, group = channel / in, c = channel % "
    "in;\n    T sum = 0;\n"
    "    for (long long ki = 0; ki < a.kh; ++ki)\n      for (long long kj = 0; kj < a.kw; ++kj) {\n"
    "        long long row = y + a.ph - ki * a.dh, column = x + a.pw - kj * a.dw;\n"
    "        if (row < 0 || column < 0 || row % a.sh != 0 || column % a.sw != 0) continue;\n"
    "        row /= a.sh; column /= a.sw;\n        if (row >= a.oh || column >= a.ow) continue;\n"
    "        for (long long o = group * outs; o < (group + 1) * outs; ++o)\n"
    "          sum += X(((image * a.oh + row) * a.ow + column) * a.oc + o) * Y(((ki * a.kw + kj) * in + c) * "
    "a.oc + o);\n      }\n"
    "    PUT(i, sum);\n";
// X are the images, Y what flows back.
constexpr const char* kFilterInGroups =
    "    const long long in = a.c / a.groups, out = i % a.oc, c = i / a.oc % in, kj = i / a.oc / in % a.kw, "
    "ki = i / a.oc / in / a.kw;\n"
    "    const long long channel = out / (a.oc / a.groups) * in + c;\n    T sum = 0;\n"
    "    for (long long image = 0; image < a.images; ++image) {\n      T part = 0;\n"
    "      for (long long row = 0; row < a.oh; ++row)\n        for (long long column = 0; column < a.ow; "
    "++column) {\n"
    "          const long long y = row * a.sh - a.ph + ki * a.dh, x = column * a.sw - a.pw + kj * a.dw;\n"
    "          if (y < 0 || y >= a.ih || x < 0 || x >= a.iw) continue;\n"
    "          part += X(((image * a.ih + y) * a.iw + x) * a.c + channel) * Y(((image * a.oh + row) * a.ow + "
    "column) * a.oc + out);\n"
    "        }\n      sum += part;\n    }\n    PUT(i, sum);\n";

KernelFn in_groups(const char* body, DType dtype, const Windows& windows, std::int64_t n) {
  return [windows, n, kernel = window_kernel(dtype, "", body)](KernelContext& c) {
    launch(kernel, *c.stream(), windows, c.input(0), c.input(1), c.output(0), n);
  };
}

// Products for a full number of images at a time, and for what is left.
struct TwoProducts {
  FloatProduct full, rest;
  TwoProducts(Product product, std::int64_t Product::*images, const Windows& w, const Pieces& pieces)
      : full(with(product, images, pieces.at_a_time * pieces.places)),
        rest(with(product, images, std::max<std::int64_t>(w.images % pieces.at_a_time, 1) * pieces.places)) {}
  static Product with(Product product, std::int64_t Product::*field, std::int64_t value) {
    product.*field = value;
    return product;
  }
};

// f(first image, how many, the product for so many), piece by piece.
template <class F>
void each_piece(const Windows& w, const Pieces& pieces, const TwoProducts& products, const F& f) {
  for (std::int64_t first = 0; first < w.images; first += pieces.at_a_time) {
    const std::int64_t count = std::min(pieces.at_a_time, w.images - first);
    f(first, count, count == pieces.at_a_time ? products.full : products.rest);
  }
}

const char* at(const void* base, std::int64_t elements, std::size_t size) {
  return static_cast<const char*>(base) + static_cast<std::size_t>(elements) * size;
}
char* at(void* base, std::int64_t elements, std::size_t size) {
  return static_cast<char*>(base) + static_cast<std::size_t>(elements) * size;
}

// Of nothing.
KernelFn zeros(const TensorSpec& output) {
  return [bytes = static_cast<std::size_t>(num_bytes(output))](KernelContext& c) {
    c.stream()->fill(c.output(0), std::byte{0}, bytes);
  };
}

// None: it is computed here.
std::optional<KernelFn> by_cudnn(ConvolutionPart part, const Windows& w, DType dtype, const NodeView& node) {
  const auto found = CudnnConvolution::find(part, w, dtype, node.allows_tf32(), node.card());
  if (!found) return std::nullopt;
  return [convolution = *found](KernelContext& c) {
    convolution.run(*c.stream(), c.input(0), c.input(1), c.output(0), c.scratch());
  };
}

KernelFn forward(const NodeView& node, std::span<const TensorSpec> outputs) {
  const DType dtype = outputs[0].dtype;
  const Windows w = filter_windows(node, node.input(0).shape, node.input(1).shape);
  const std::int64_t n = outputs[0].shape.num_elements();
  if (n == 0) return [](KernelContext&) {};
  if (const auto found = by_cudnn(ConvolutionPart::kResult, w, dtype, node)) return *found;
  if (w.groups > 1) return in_groups(kForwardInGroups, dtype, w, n);
  const Pieces pieces(w, dtype);
  if (pieces.depth == 0) return zeros(outputs[0]);
  const TwoProducts products(
      {.n = w.out_channels, .k = pieces.depth, .dtype = dtype, .tf32 = node.allows_tf32()}, &Product::m, w,
      pieces);
  return [w, pieces, products, size = size_of(dtype),
          patches_of = window_kernel(dtype, "", kPatches)](KernelContext& c) {
    each_piece(w, pieces, products, [&](std::int64_t first, std::int64_t count, const FloatProduct& product) {
      launch(patches_of, *c.stream(), w, at(c.input(0), first * w.rows.in * w.columns.in * w.channels, size),
             nullptr, c.scratch(), count * pieces.places * pieces.depth);
      product.run(*c.stream(), c.scratch(), c.input(1),
                  at(c.output(0), first * pieces.places * w.out_channels, size),
                  at(c.scratch(), static_cast<std::int64_t>(pieces.patch_bytes), 1));
    });
  };
}

// Inputs: what flows back, the filter.
KernelFn backward_input(const NodeView& node, std::span<const TensorSpec> outputs) {
  const DType dtype = outputs[0].dtype;
  const Windows w = filter_windows(node, outputs[0].shape, node.input(1).shape);
  const std::int64_t n = outputs[0].shape.num_elements();
  if (n == 0) return [](KernelContext&) {};
  if (const auto found = by_cudnn(ConvolutionPart::kImages, w, dtype, node)) return *found;
  if (w.groups > 1) return in_groups(kInputInGroups, dtype, w, n);
  if (w.out_channels == 0) return zeros(outputs[0]);
  const Pieces pieces(w, dtype);
  const TwoProducts products({.n = pieces.depth,
                              .k = w.out_channels,
                              .transpose_b = true,
                              .dtype = dtype,
                              .tf32 = node.allows_tf32()},
                             &Product::m, w, pieces);
  return [w, pieces, products, size = size_of(dtype),
          images_of = window_kernel(dtype, "", kOutOfPatches)](KernelContext& c) {
    const std::int64_t image = w.rows.in * w.columns.in * w.channels;
    each_piece(w, pieces, products, [&](std::int64_t first, std::int64_t count, const FloatProduct& product) {
      product.run(*c.stream(), at(c.input(0), first * pieces.places * w.out_channels, size), c.input(1),
                  c.scratch(), at(c.scratch(), static_cast<std::int64_t>(pieces.patch_bytes), 1));
      launch(images_of, *c.stream(), w, c.scratch(), nullptr, at(c.output(0), first * image, size),
             count * image);
    });
  };
}

// Inputs: the images, what flows back.
KernelFn backward_filter(const NodeView& node, std::span<const TensorSpec> outputs) {
  const DType dtype = outputs[0].dtype;
  const Windows w = filter_windows(node, node.input(0).shape, outputs[0].shape);
  const std::int64_t n = outputs[0].shape.num_elements();
  if (n == 0) return [](KernelContext&) {};
  if (const auto found = by_cudnn(ConvolutionPart::kFilter, w, dtype, node)) return *found;
  if (w.groups > 1) return in_groups(kFilterInGroups, dtype, w, n);
  if (w.images == 0 || w.rows.out * w.columns.out == 0) return zeros(outputs[0]);
  const Pieces pieces(w, dtype);
  const TwoProducts products({.m = pieces.depth,
                              .n = w.out_channels,
                              .transpose_a = true,
                              .dtype = dtype,
                              .tf32 = node.allows_tf32()},
                             &Product::k, w, pieces);
  return [w, pieces, products, size = size_of(dtype),
          patches_of = window_kernel(dtype, "", kPatches)](KernelContext& c) {
    each_piece(w, pieces, products, [&](std::int64_t first, std::int64_t count, const FloatProduct& product) {
      launch(patches_of, *c.stream(), w, at(c.input(0), first * w.rows.in * w.columns.in * w.channels, size),
             nullptr, c.scratch(), count * pieces.places * pieces.depth);
      product.run(*c.stream(), c.scratch(), at(c.input(1), first * pieces.places * w.out_channels, size),
                  c.output(0), at(c.scratch(), static_cast<std::int64_t>(pieces.patch_bytes), 1), first > 0);
    });
  };
}

void add(OpRegistry& registry, const char* op, ConvolutionPart part, KernelMaker make, std::size_t images,
         std::size_t filter) {
  KernelDef def(std::move(make));
  def.split = [part, images, filter](const NodeView& node, std::span<const TensorSpec> outputs) {
    const auto shape = [&](std::size_t i) -> const Shape& {
      return i == 2 ? outputs[0].shape : node.input(i).shape;
    };
    const Windows w = filter_windows(node, shape(images), shape(filter));
    const DType dtype = outputs[0].dtype;
    if (const auto found = CudnnConvolution::find(part, w, dtype, node.allows_tf32(), node.card()))
      return Split{1, found->room(), false};
    return Split{1, w.groups > 1 ? 0 : Pieces(w, dtype).room(), false};
  };
  registry.add_kernel(op, "cuda", std::move(def));
}

}  // namespace

void add_convolution_kernels(OpRegistry& registry) {
  add(registry, "conv2d", ConvolutionPart::kResult, forward, 0, 1);
  add(registry, "conv2d_backward_input", ConvolutionPart::kImages, backward_input, 2, 1);
  add(registry, "conv2d_backward_filter", ConvolutionPart::kFilter, backward_filter, 0, 2);
}

}  // namespace lockstep::internal::cuda
