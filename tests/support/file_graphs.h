// tests/support/file_graphs.h - a graph with everything that a file can hold, and what it means to be the
// same graph.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/graph/check/structure.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/text/text.h"

namespace lockstep::testing {

// An op that takes any attribute: registered once, for the files that hold one of each.
inline const OpDef& any_attributes_op() {
  static const OpDef& op = [&]() -> const OpDef& {
    OpDef def;
    def.name = "file_test_any";
    def.inputs = Arity::exactly(1);
    def.open_attributes = true;
    def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
    return OpRegistry::global().add(std::move(def));
  }();
  return op;
}

// Bytes 0, 1, 2, ... as elements; bool 0, 1, 0, ...
inline Tensor counting_tensor(DType dtype, const Shape& shape) {
  Tensor tensor = Tensor::empty(dtype, shape);
  auto* bytes = static_cast<std::uint8_t*>(tensor.raw());
  for (std::size_t i = 0; i < tensor.num_bytes(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(dtype == DType::kBool ? i % 2 : i * 7);
  }
  return tensor;
}

// What the files of version 1 in tests/io/files hold. Files are forever: do not change it; a later version
// gets its own.
inline Graph graph_of_version_1() {
  Graph graph = parse(R"(
    var @w : f32[4] = f32[4]{1.0, -0.0, 1e-30, 3.0} [trainable=false, synchronization=on_write, aggregation=mean, device="cpu:1"]
    var @"größe \"2\"" : i64[] [synchronization=on_read, aggregation=only_first_replica]
    var @w/replica_1 : f32[4] [copy_of=@w, replica=1, synchronization=none, aggregation=sum]
    var @w/replica_2 : f32[4] [copy_of=@w, replica=2, shares=true]
    %x = placeholder() : f32[?,4]
    %w/read = read[variable=@w]() : f32[4]
    %sum = sum[axes=ints[], keepdims=false](%x) : f32[]
    %constant = constant[value=f32[]{3.0}]() : f32[]
    %less = less(%sum, %constant) : bool[]
    %cond = cond(%less, %x, %w/read) : f32[?,4] {
      region {
        %x = placeholder() : f32[?,4]
        %w/read = placeholder() : f32[4]
        %add = add(%x, %w/read) : f32[?,4]
        return %add
      }
      region {
        %x = placeholder() : f32[?,4]
        %w/read = placeholder() : f32[4]
        %while_loop = while_loop[carried=1](%x) : f32[?,4] {
          region {
            %x = placeholder() : f32[?,4]
            %sum = sum[axes=ints[], keepdims=false](%x) : f32[]
            %constant = constant[value=f32[]{100.0}]() : f32[]
            %less = less(%sum, %constant) : bool[]
            return %less
          }
          region {
            %x = placeholder() : f32[?,4]
            %constant = constant[value=f32[]{2.0}]() : f32[]
            %mul = mul(%x, %constant) : f32[?,4]
            return %mul
          }
        }
        return %while_loop
      }
    }
    %sum_1 = sum[axes=[0], keepdims=false](%cond) : f32[4]
    %w/assign_add = assign_add[variable=@w](%sum_1) : f32[4] after(%w/read)
  )",
                      "model.lks");

  std::vector<Attribute> attributes = {
      {"bool", true},
      {"int", std::numeric_limits<std::int64_t>::min()},
      {"float", -0.0},
      {"float nan", std::bit_cast<double>(std::uint64_t{0x7ff8dead00beef01})},
      {"float inf", -std::numeric_limits<double>::infinity()},
      {"string", std::string("line\nquote\" tab\t nul\0 end", 25)},
      {"dtype", DType::kBF16},
      {"shape", Shape{2, kUnknown, 0}},
      {"scalar shape", Shape{}},
      {"undefined tensor", Tensor()},
      {"variable", VariableRef{"w"}},
      {"ints", std::vector<std::int64_t>{-1, 0, std::numeric_limits<std::int64_t>::max()}},
      {"no ints", std::vector<std::int64_t>{}},
      {"floats", std::vector<double>{0.1, 1e300}},
      {"no floats", std::vector<double>{}},
      {"strings", std::vector<std::string>{"", "ünï"}},
      {"no strings", std::vector<std::string>{}}};
  for (const DType dtype : kAllDTypes) {
    const std::string name(to_string(dtype));
    attributes.push_back({"tensor " + name, counting_tensor(dtype, {3})});
    attributes.push_back({"empty " + name, counting_tensor(dtype, {0, 2})});
  }
  attributes.push_back({"large", counting_tensor(DType::kI32, {300})});  // a raw block in binary files
  attributes.push_back({"large bool", counting_tensor(DType::kBool, {1025})});

  NodeInit init;
  init.op = &any_attributes_op();
  init.name = "encoder/layer_1/any";
  init.inputs = {ValueId{graph.find("cond"), 0}};
  init.controls = {graph.find("x"), graph.find("w/read")};
  init.outputs = {TensorSpec{DType::kF32, {kUnknown, 4}}};
  init.attributes = std::move(attributes);
  init.device = "cpu:3";
  init.site = {"model.cpp", "train", 42};
  const NodeId id = graph.add(std::move(init));
  graph.set_results({{id, 0}, {graph.find("w/read"), 0}});

  // What a pass leaves behind.
  Provenance provenance = graph.node(id).provenance();
  provenance.origin = graph.node(graph.find("x")).provenance().identity;
  provenance.made_by = graph.intern("replicate");
  provenance.why = graph.intern("because of \"it\"");
  provenance.replica = 1;
  graph.set_provenance(id, provenance);
  return graph;
}

// Same structure, names, creation sites and provenance, regions included. `identities`: also the numbers.
inline void expect_same_graph(const Graph& a, const Graph& b, bool identities = true) {
  ASSERT_EQ(structural_difference(a, b), "");
  ASSERT_EQ(a.size(), b.size());
  for (const Node& left : a.nodes()) {
    SCOPED_TRACE(left.name());
    const Node& right = b.node(b.find(left.name()));
    EXPECT_STREQ(left.site().file, right.site().file);
    EXPECT_STREQ(left.site().function, right.site().function);
    EXPECT_EQ(left.site().line, right.site().line);
    const Provenance &p = left.provenance(), &q = right.provenance();
    EXPECT_EQ(a.text(p.made_by), b.text(q.made_by));
    EXPECT_EQ(a.text(p.why), b.text(q.why));
    EXPECT_EQ(p.replica, q.replica);
    EXPECT_EQ(p.gradient == GradientMark::kShare, q.gradient == GradientMark::kShare);
    if (identities) {
      EXPECT_EQ(p.identity, q.identity);
      EXPECT_EQ(p.origin, q.origin);
    } else {
      EXPECT_EQ(p.identity == p.origin, q.identity == q.origin);
    }
    ASSERT_EQ(left.regions().size(), right.regions().size());
    for (std::size_t i = 0; i < left.regions().size(); ++i) {
      expect_same_graph(left.regions()[i], right.regions()[i], identities);
    }
  }
}

}  // namespace lockstep::testing
