// graph/check/verifier_rules.cpp - the rules that need no regions and no order of effects.
#include "lockstep/graph/check/internal/verifier_rules.h"

#include <algorithm>

#include "lockstep/core/device.h"

namespace lockstep::internal::verifier {
namespace {

std::string in_quotes(std::string_view text) { return str("'", text, "'"); }

// The position of an id that is in the list a second time; the size if there is none.
std::size_t find_repeated(std::span<const NodeId> ids, std::vector<NodeId>& scratch) {
  constexpr std::size_t kFew = 8;
  if (ids.size() < 2) return ids.size();
  if (ids.size() > kFew) {
    scratch.assign(ids.begin(), ids.end());
    std::ranges::sort(scratch);
    const auto twice = std::ranges::adjacent_find(scratch);
    if (twice == scratch.end()) return ids.size();
    const auto first = std::find(ids.begin(), ids.end(), *twice);
    return static_cast<std::size_t>(std::find(first + 1, ids.end(), *twice) - ids.begin());
  }
  for (std::size_t i = 1; i < ids.size(); ++i) {
    if (std::find(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(i), ids[i]) !=
        ids.begin() + static_cast<std::ptrdiff_t>(i))
      return i;
  }
  return ids.size();
}

}  // namespace

void known_ops(NodeCheck& check) {
  if (check.node.op().known) return;
  check.fail(
      str(in_quotes(check.node.name()), " has op ", in_quotes(check.node.op().name),
          ", which is not registered; register it (OpRegistry::global().add) before the graph is read"));
}

void unique_names(NodeCheck& check) {
  const std::string& name = check.node.name();
  if (name.empty()) return check.fail("a node has an empty name");
  const NodeId found = check.graph.find(name);
  if (found == check.node.id()) return;
  if (found.valid()) {
    check.fail(str("two nodes are named ", in_quotes(name)));
  } else {
    check.fail(str("the graph does not find its node ", in_quotes(name), " by name"));
  }
}

void live_inputs(NodeCheck& check) {
  const std::span<const ValueId> inputs = check.node.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (check.graph.has_output(inputs[i])) continue;
    const auto subject = [&] { return str("input ", i, " of ", in_quotes(check.node.name())); };
    if (!check.graph.contains(inputs[i].node)) {
      check.fail(str(subject(),
                     " is a node that is not in this graph (it was erased, or belongs to another graph)"));
    } else {
      const Node& source = check.graph.node(inputs[i].node);
      check.fail(str(subject(), " is output ", inputs[i].output, " of ", in_quotes(source.name()),
                     ", which has ", source.outputs().size(),
                     source.outputs().size() == 1 ? " output" : " outputs"));
    }
  }
}

void control_inputs(NodeCheck& check) {
  const std::span<const NodeId> controls = check.node.controls();
  if (controls.empty()) return;
  for (const NodeId id : controls) {
    if (!check.graph.contains(id)) {
      check.fail(
          str(in_quotes(check.node.name()),
              " runs after a node that is not in this graph (it was erased, or belongs to another graph)"));
    } else if (id == check.node.id()) {
      check.fail(str(in_quotes(check.node.name()), " runs after itself"));
    }
  }
  const std::size_t repeated = find_repeated(controls, check.run.node_ids);
  if (repeated < controls.size() && check.graph.contains(controls[repeated])) {
    check.fail(str(in_quotes(check.node.name()), " runs after ",
                   in_quotes(check.graph.node(controls[repeated]).name()), " twice; name it once"));
  }
}

void arity(NodeCheck& check) {
  const Node& node = check.node;
  if (node.op().inputs.accepts(node.inputs().size())) return;
  check.fail(
      str(in_quotes(node.name()), ": ", node.op().name, " ", arity_message(node.op(), node.inputs().size())));
}

void attributes(NodeCheck& check) {
  const Node& node = check.node;
  const OpDef& op = node.op();
  const auto subject = [&] { return str(in_quotes(node.name()), ": ", op.name); };
  for (const AttributeSpec& spec : op.attributes) {
    const AttributeValue* value = find_attribute(node.attributes(), spec.name);
    if (value == nullptr) {
      if (spec.required) {
        check.fail(
            str(subject(), " needs the attribute ", in_quotes(spec.name), " (", to_string(spec.type), ")"));
      }
    } else if (type_of(*value) != spec.type) {
      check.fail(str(subject(), " takes a ", to_string(spec.type), " as attribute ", in_quotes(spec.name),
                     ", got a ", to_string(type_of(*value))));
    }
  }
  if (op.open_attributes) return;
  for (const Attribute& attribute : node.attributes()) {
    if (std::ranges::find(op.attributes, attribute.name, &AttributeSpec::name) == op.attributes.end()) {
      check.fail(str(subject(), " has no attribute ", in_quotes(attribute.name)));
    }
  }
}

void variables_declared(NodeCheck& check) {
  for (const Attribute& attribute : check.node.attributes()) {
    const auto* variable = std::get_if<VariableRef>(&attribute.value);
    if (variable == nullptr) continue;
    const VariableDecl* decl = check.run.outermost.find_variable(variable->name);
    if (decl != nullptr && !decl->shares) continue;
    if (decl != nullptr) {
      check.fail(str(in_quotes(check.node.name()), " uses the variable '@", variable->name,
                     "', which lies in the memory of '@", decl->copy_of, "': it must use that name"));
      continue;
    }
    check.fail(str(in_quotes(check.node.name()), " uses the variable '@", variable->name,
                   "', which the outermost graph does not declare"));
  }
}

// --- outputs

void infer(NodeCheck& check) {
  if (!check.sound || !check.regions_sound || !check.run.wants(check.rule)) return;
  std::vector<TensorSpec>& specs = check.run.input_specs;
  specs.clear();
  for (const ValueId input : check.node.inputs()) specs.push_back(check.graph.spec(input));
  NodeView::ShapeValues shape_values;
  if (!check.node.op().shape_operands.empty()) {
    std::unique_ptr<StaticElements>& elements = check.graph_check.elements;
    if (elements == nullptr) elements = std::make_unique<StaticElements>(check.graph);
    shape_values = elements->for_node(check.node);
  }
  try {
    check.inferred =
        infer_outputs(check.node, specs, check.run.variables, shape_values ? &shape_values : nullptr);
    // Also if the rule did not ask for them: the kernel will.
    for (const std::size_t operand : check.node.op().shape_operands) {
      if (operand < specs.size()) shape_values(operand);
    }
  } catch (const Error& error) {
    check.fail(str(in_quotes(check.node.name()), ": ", error.message()));
  } catch (const std::bad_alloc&) {
    throw;                                 // says nothing about the graph
  } catch (const std::exception& error) {  // a user's rule may throw anything
    check.fail(str(in_quotes(check.node.name()), ": ", check.node.op().name, ": ", error.what()));
  }
}

namespace {

bool was_inferred(const NodeCheck& check) {
  return check.sound && check.regions_sound && check.run.wants(check.rule);
}

}  // namespace

void output_count(NodeCheck& check) {
  if (!was_inferred(check)) return;
  const std::size_t stored = check.node.outputs().size();
  if (stored == check.inferred.size()) return;
  check.fail(str(in_quotes(check.node.name()), " states ", stored, stored == 1 ? " output" : " outputs", "; ",
                 check.node.op().name, " gives ", check.inferred.size()));
}

void dtypes(NodeCheck& check) {
  if (!was_inferred(check)) return;
  const std::span<const TensorSpec> stored = check.node.outputs();
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (stored[i].dtype == check.inferred[i].dtype) continue;
    check.fail(str("output ", i, " of ", in_quotes(check.node.name()), " is stated as ", stored[i], "; ",
                   check.node.op().name, " gives ", check.inferred[i]));
  }
}

void shapes(NodeCheck& check) {
  if (!was_inferred(check)) return;
  const std::span<const TensorSpec> stored = check.node.outputs();
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (stored[i].shape == check.inferred[i].shape) continue;
    check.fail(str("output ", i, " of ", in_quotes(check.node.name()), " is stated as ", stored[i], "; ",
                   check.node.op().name, " gives ", check.inferred[i]));
  }
}

namespace {

// What is wrong with the name of a device; empty: nothing.
std::string device_fault(const Run& run, const std::string& name) {
  try {
    const Device device = Device::parse(name);
    if (device.to_string() != name)
      return str(", which is not the canonical name; it is ", in_quotes(device.to_string()));
    if (run.topology == nullptr) return {};
    const Decision exists = run.topology->has_device(device);
    return exists ? std::string() : str(": ", exists.reason());
  } catch (const Error& error) {
    return str(": ", error.message());
  }
}

}  // namespace

void device_known(NodeCheck& check) {
  const std::string& name = check.node.device();
  if (name.empty() || &name == check.run.last_device) return;
  if (!check.run.good_devices.contains(name)) {
    const std::string fault = device_fault(check.run, name);
    if (!fault.empty())
      return check.fail(str(in_quotes(check.node.name()), " is placed on ", in_quotes(name), fault));
    check.run.good_devices.insert(name);
  }
  check.run.last_device = &name;
}

void variable_device_known(GraphCheck& check) {
  for (const VariableDecl& decl : check.graph.variables()) {
    if (decl.device.empty() || check.run.good_devices.contains(decl.device)) continue;
    const std::string fault = device_fault(check.run, decl.device);
    if (fault.empty()) {
      check.run.good_devices.insert(decl.device);
    } else {
      check.fail(str("variable ", in_quotes(decl.name), " is declared on ", in_quotes(decl.device), fault,
                     decl.made_at.empty() ? "" : str(" (made at ", decl.made_at, ")")));
    }
  }
}

// --- graphs

void acyclic(GraphCheck& check) {
  check.order = check.graph.topological_order(&check.run.node_ids);
  std::vector<NodeId>& cycle = check.run.node_ids;
  if (cycle.empty()) return;
  // Begin at the lowest id, so that the message does not depend on how the cycle was found.
  std::rotate(cycle.begin(), std::ranges::min_element(cycle), cycle.end());
  constexpr std::size_t kShown = 20;
  std::string path;
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    if (i == kShown && cycle.size() > kShown + 1) {
      path += str("... (", cycle.size() - kShown - 1, " more) -> ");
      i = cycle.size() - 1;
    }
    path += check.graph.node(cycle[i]).name();
    path += " -> ";
  }
  path += check.graph.node(cycle[0]).name();
  check.cyclic = true;
  check.fail_at(check.graph.node(cycle[0]), path);
}

void region_variables(GraphCheck& check) {
  if (check.holder == nullptr) return;
  for (const VariableDecl& variable : check.graph.variables()) {
    check.fail(str("the variable '@", variable.name,
                   "' is declared in a region; declare it in the outermost graph"));
  }
}

void parameters(GraphCheck& check) {
  const OpDef* placeholder = check.run.placeholder;
  std::vector<bool> listed(check.graph.id_bound());
  for (const NodeId id : check.graph.parameters()) {
    if (!check.graph.contains(id)) {
      check.fail(
          "a parameter is a node that is not in this graph (it was erased, or belongs to another graph)");
      continue;
    }
    const Node& node = check.graph.node(id);
    if (listed[id.index()]) check.fail_at(node, str(in_quotes(node.name()), " is a parameter twice"));
    listed[id.index()] = true;
    if (&node.op() != placeholder) {
      check.fail_at(node, str("the parameter ", in_quotes(node.name()), " is of op ",
                              in_quotes(node.op().name), "; parameters are placeholders"));
    } else if (node.outputs().size() != 1) {
      check.fail_at(node, str("the parameter ", in_quotes(node.name()), " has ", node.outputs().size(),
                              " outputs; a placeholder has one"));
    }
  }
  for (const Node& node : check.graph.nodes()) {
    if (&node.op() != placeholder || listed[node.id().index()]) continue;
    check.fail_at(node,
                  str("the placeholder ", in_quotes(node.name()), " is not among the graph's parameters"));
  }
}

void results(GraphCheck& check) {
  const std::vector<ValueId>& results = check.graph.results();
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (check.graph.has_output(results[i])) continue;
    if (!check.graph.contains(results[i].node)) {
      check.fail(str("result ", i,
                     " is a node that is not in this graph (it was erased, or belongs to another graph)"));
    } else {
      const Node& node = check.graph.node(results[i].node);
      check.fail_at(node, str("result ", i, " is output ", results[i].output, " of ", in_quotes(node.name()),
                              ", which has ", node.outputs().size(),
                              node.outputs().size() == 1 ? " output" : " outputs"));
    }
  }
}

}  // namespace lockstep::internal::verifier
