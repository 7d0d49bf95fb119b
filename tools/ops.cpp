// tools/ops.cpp - lockstep ops: the available ops, from the registry itself.
#include <iomanip>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "commands.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/transform/replica_kind.h"

namespace lockstep::tools {

namespace {

std::string arity_text(const Arity& arity) {
  if (arity.max == std::numeric_limits<std::size_t>::max()) return str(arity.min, " or more");
  return arity.min == arity.max ? str(arity.min) : str(arity.min, " to ", arity.max);
}

std::string attributes_text(const OpDef& op, std::string_view quote) {
  std::string text;
  for (const AttributeSpec& attribute : op.attributes) {
    text += str(text.empty() ? "" : ", ", quote, attribute.name, quote, " ", to_string(attribute.type),
                attribute.required ? "" : " (optional)");
  }
  if (op.open_attributes) text += text.empty() ? "any" : ", and any other";
  return text;
}

// The traits of an op that passes and strategies read, in words; not those that concern only its own kernels.
std::vector<std::string> traits_of(const OpDef& op) {
  const OpTraits& t = op.traits;
  std::vector<std::string> words;
  const auto say = [&](bool holds, std::string word) {
    if (holds) words.push_back(std::move(word));
  };
  say(t.elementwise, "element-wise");
  say(t.commutative, "commutative");
  say(t.alias, "alias: nothing runs");
  say(t.alias_if_same, "alias where specs are equal");
  say(t.infallible, "never fails");
  say(differs_by_itself(t), "differs between replicas");
  say(t.is(ReplicaRole::kCollective), "joins replicas");
  say(t.same_on_all, "the same on all replicas");
  say(t.is(ReplicaRole::kReplicaNumber), "the number of the replica");
  say(t.is(ReplicaRole::kAgree), "inputs must agree");
  say(t.is(ReplicaRole::kSumOverReplicas), "a sum over replicas");
  say(t.is(ReplicaRole::kShare), "a share of the value");
  say(t.checkpoint, "kept for gradients");
  say(t.gives_shape, "looks at the shape alone");
  say(t.moves_elements, "moves elements");
  say(t.keeps_zeros, "keeps zeros");
  say(t.reads_variable.has_value(), "reads a variable");
  if (t.updates_variable) {
    std::string word = "updates a variable";
    if (!t.updates_variable->slots.empty()) word += str(" and ", t.updates_variable->slots.size(), " slots");
    words.push_back(std::move(word));
  }
  say(t.merges_updates, "makes the updates of its region at once");
  return words;
}

std::string comma_list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += str(text.empty() ? "" : ", ", word);
  return text;
}

// "cpu", or "cpu (deferred)" if calls may go on after the kernel has returned.
std::string kernels_text(const OpDef& op) {
  std::vector<std::string> words = OpRegistry::global().kernel_sets(op);
  for (std::string& set : words) {
    if (OpRegistry::global().kernel(op, set)->deferred) set += " (deferred)";
  }
  return comma_list(words);
}

void print_one(const OpDef& op) {
  const auto row = [](std::string_view name, const std::string& text) {
    if (!text.empty()) std::cout << "  " << std::left << std::setw(12) << name << text << '\n';
  };
  std::cout << op.name << ": " << op.summary << '\n';
  row("inputs", arity_text(op.inputs));
  row("attributes", attributes_text(op, ""));
  if (op.regions > 0) row("regions", str(op.regions));
  row("effects", to_string(op.effects));
  row("traits", comma_list(traits_of(op)));
  row("gradient", op.gradient ? "yes" : "no");
  row("kernels", kernels_text(op));
}

// The vertical bar would end a cell.
std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

void print_markdown(const std::vector<const OpDef*>& ops) {
  std::cout << "# Reference of ops\n\n"
               "Every built-in op as the registry knows it, written by `lockstep ops --markdown`. What they "
               "compute, and the\n"
               "functions that make them, is in [ops.md](ops.md); `lockstep ops NAME` describes one, those "
               "of a plugin too.\n\n"
               "| op | what | inputs | attributes | effects | traits | gradient |\n"
               "| --- | --- | --- | --- | --- | --- | --- |\n";
  for (const OpDef* op : ops) {
    std::cout << "| `" << op->name << "` | " << cell(op->summary) << " | " << arity_text(op->inputs) << " | "
              << attributes_text(*op, "`") << " | " << cell(to_string(op->effects)) << " | "
              << comma_list(traits_of(*op)) << " | " << (op->gradient ? "yes" : "no") << " |\n";
  }
}

}  // namespace

int run_command(const OpsCommand& command) {
  OpRegistry& registry = OpRegistry::global();
  if (!command.name.empty()) {
    if (command.markdown) throw UsageError("ops: --markdown writes the page of all ops: leave out the name");
    print_one(registry.get(command.name));
    return kSuccess;
  }
  std::vector<const OpDef*> ops;
  for (const std::string& name : registry.names()) {
    const OpDef& op = registry.get(name);
    if (op.known) ops.push_back(&op);
  }
  if (command.markdown) {
    print_markdown(ops);
    return kSuccess;
  }
  for (const OpDef* op : ops)
    std::cout << std::left << std::setw(26) << op->name << ' ' << op->summary << '\n';
  return kSuccess;
}

}  // namespace lockstep::tools
