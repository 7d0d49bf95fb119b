// graph/run/compile.cpp - what happens to a graph and its variables before there are plans; program.cpp makes
// those.
#include "lockstep/graph/run/compile.h"

#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/variable_store.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/run/variable_role.h"

namespace lockstep {

namespace {

// Makes the variables of the graph that the store does not have yet, and the names that share memory with
// others.
void bind_variables(const Graph& graph, VariableStore& store) {
  for (const VariableDecl& decl : graph.variables()) {
    if (decl.shares) {
      store.alias(decl.name, decl.copy_of);
      continue;
    }
    if (store.is_alias(decl.name)) {
      throw InvalidArgument(str("variable '", decl.name, "' lies in the memory of another in this store, ",
                                "and the graph wants it by itself; use another store"));
    }
    store.find_or_create(
        decl.name, decl.spec,
        [&] {
          if (!decl.copy_of.empty()) return store.value(decl.copy_of);  // a broadcast from the original
          return decl.initial.defined() ? decl.initial : Tensor::zeros(decl.spec.dtype, decl.spec.shape);
        },
        role_of(decl));
  }
}

}  // namespace

Program compile(Graph graph, const Runtime& runtime, const CompileOptions& options) {
  if (options.max_plans < 1) throw InvalidArgument("CompileOptions::max_plans must be at least 1");
  CompileOptions bound = options;
  if (bound.variables == nullptr) bound.variables = runtime.variables();
  graph.compact();
  if (options.verify) verify(graph, &runtime);
  bind_variables(graph, *bound.variables);
  return {std::move(graph), runtime, bound};
}

}  // namespace lockstep
