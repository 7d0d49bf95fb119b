// io/datasets/any_dataset.cpp - the tree of a dataset: handles, printing, what nodes and cursors have in common.
#include "lockstep/io/datasets/any_dataset.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"
#include "lockstep/core/hasher.h"
#include "lockstep/io/datasets/internal/node.h"

namespace lockstep {

namespace {

constexpr std::size_t kPrintedNames = 3;

std::string print_value(const DatasetAttribute::Value& value) {
  if (const bool* const flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* const number = std::get_if<std::int64_t>(&value)) return str(*number);
  if (const double* const number = std::get_if<double>(&value)) return str(*number);
  if (const auto* const text = std::get_if<std::string>(&value)) return str('\'', printable(*text), '\'');
  const Strings& list = std::get<Strings>(value);
  std::string printed = "[";
  internal::Hasher hasher;
  for (std::size_t i = 0; i < list.size(); ++i) {
    hasher.add(list[i]);
    if (i < kPrintedNames) printed += str(i > 0 ? ", '" : "'", printable(list[i]), '\'');
  }
  if (list.size() > kPrintedNames) printed += str(", ... ", list.size(), " in all, hash ", hasher.result());
  return printed + "]";
}

enum class Printed : std::uint8_t { kAll, kMeaning };

void print_tree(std::string& out, const AnyDataset& dataset, std::size_t depth, Printed what) {
  const bool all = what == Printed::kAll;
  if (!all && dataset.op() == "with_options") return print_tree(out, dataset.inputs()[0], depth, what);
  out.append(2 * depth, ' ');
  out += dataset.op();
  out += '(';
  bool first = true;
  for (const DatasetAttribute& attribute : dataset.attributes()) {
    if (!all && attribute.kind == DatasetAttribute::Kind::kTuning) continue;
    out += str(first ? "" : ", ", attribute.name, "=", print_value(attribute.value));
    first = false;
  }
  out += str("): ", dataset.element_spec());
  if (all && dataset.site().known()) out += str("  at ", dataset.site().file, ":", dataset.site().line);
  out += '\n';
  for (const AnyDataset& input : dataset.inputs()) print_tree(out, input, depth + 1, what);
}

}  // namespace

AnyDataset::AnyDataset(std::shared_ptr<const internal::DatasetNode> node) : node_(std::move(node)) {
  LOCKSTEP_CHECK(node_ != nullptr);
}
AnyDataset::~AnyDataset() = default;
AnyDataset::AnyDataset(const AnyDataset&) = default;
AnyDataset& AnyDataset::operator=(const AnyDataset&) = default;
AnyDataset::AnyDataset(AnyDataset&&) noexcept = default;
AnyDataset& AnyDataset::operator=(AnyDataset&&) noexcept = default;

const ElementSpec& AnyDataset::element_spec() const { return node_->spec(); }
const std::string& AnyDataset::op() const { return node_->op(); }
const std::vector<DatasetAttribute>& AnyDataset::attributes() const { return node_->attributes(); }
const std::vector<AnyDataset>& AnyDataset::inputs() const { return node_->inputs(); }
const SourceSite& AnyDataset::site() const { return node_->site(); }

AnyDataset AnyDataset::with_inputs(std::vector<AnyDataset> inputs) const {
  if (inputs.size() != node_->inputs().size()) {
    throw InvalidArgument(str("with_inputs: ", op(), " has ", counted(node_->inputs().size(), "input"),
                              ", got ", inputs.size()),
                          internal::place_of(*node_));
  }
  if (inputs.empty()) return *this;
  return node_->with_inputs(std::move(inputs));
}

std::string AnyDataset::to_string() const {
  std::string text;
  print_tree(text, *this, 0, Printed::kAll);
  return text;
}

std::string AnyDataset::signature() const {
  std::string text;
  print_tree(text, *this, 0, Printed::kMeaning);
  return text;
}

namespace internal {

std::uint64_t Cursor::skip(std::uint64_t count) {
  Element passed;
  for (std::uint64_t done = 0; done < count; ++done) {
    if (!next(passed)) return done;
  }
  return count;
}

std::size_t Cursor::next_rows(std::span<std::int64_t> /*to*/) {
  LOCKSTEP_CHECK(false);
  return 0;
}

void Cursor::add_stats(std::vector<DatasetStage>& /*to*/) const {}

std::string Cursor::save_now() const {
  StateWriter writer;
  save(writer);
  return writer.take();
}

ErrorPlace place_of(const DatasetNode& node) {
  ErrorPlace place;
  place.op = node.op();
  place.file = node.site().file;
  place.line = node.site().line;
  return place;
}

void refuse(std::string_view op, const SourceSite& site, const std::string& message) {
  ErrorPlace place;
  place.op = op;
  place.file = site.file;
  place.line = site.line;
  throw InvalidArgument(str(op, ": ", message), std::move(place));
}

void rethrow_at(const DatasetNode& node, std::uint64_t element) {
  try {
    throw;
  } catch (const Error& error) {
    if (error.place().line != 0 || error.code() == ErrorCode::kCancelled) throw;
    throw_error(error.code(), str(node.op(), ": element ", element, ": ", error.message()), place_of(node));
  } catch (const std::exception& error) {
    throw_error(code_of(error, ErrorCode::kInvalidArgument),
                str(node.op(), ": element ", element, ": ", message_of(error)), place_of(node));
  }
}

void check_fits(const DatasetNode& node, std::uint64_t element, const Element& value) {
  if (admits(node.spec(), value)) return;
  throw InvalidArgument(str(node.op(), ": element ", element, " does not fit: expected ", node.spec(),
                            ", got ", spec_of(value)),
                        place_of(node));
}

void check_cancelled(const std::stop_token& cancel) {
  if (cancel.stop_requested()) throw Error(ErrorCode::kCancelled, "the dataset's iterator was cancelled");
}

std::uint64_t inner_epoch(std::uint64_t epoch, std::uint64_t pass) {
  return epoch == 0 ? pass : Hasher(epoch).result() + pass;
}

ElementSpec row_spec(const ElementSpec& spec) {
  return spec.with_leaves<LeafSpec>([](const LeafSpec& leaf) -> LeafSpec {
    if (leaf.kind == LeafSpec::Kind::kStrings) return LeafSpec::string();
    if (leaf.kind != LeafSpec::Kind::kTensor) return leaf;
    if (leaf.tensor.shape.rank() == 0) throw InvalidArgument(str("a scalar (", leaf.tensor, ") has no rows"));
    return TensorSpec{leaf.tensor.dtype, leaf.tensor.shape.without_dim(0)};
  });
}

ElementSpec batch_spec(const ElementSpec& spec, std::int64_t extent, std::string_view op,
                       const SourceSite& site) {
  return spec.with_leaves<LeafSpec>([&](const LeafSpec& leaf) -> LeafSpec {
    if (leaf.kind == LeafSpec::Kind::kStrings)
      refuse(op, site, str("elements of ", spec, " hold lists of strings, and lists are not batched"));
    if (leaf.kind == LeafSpec::Kind::kString) return LeafSpec::strings();
    if (leaf.kind != LeafSpec::Kind::kTensor) return leaf;
    return TensorSpec{leaf.tensor.dtype, leaf.tensor.shape.with_inserted(0, extent)};
  });
}

}  // namespace internal
}  // namespace lockstep
