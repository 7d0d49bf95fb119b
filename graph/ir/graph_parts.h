// graph/ir/graph_parts.h - parts of a Graph: interned strings and source lines, declared variables.
//
// For Graph alone. Thread safety: any number of readers, or one writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/number_table.h"
#include "lockstep/core/source_site.h"
#include "lockstep/graph/ir/ids.h"
#include "lockstep/graph/ir/variable_decl.h"

namespace lockstep::internal {

// Strings, each once.
class LOCKSTEP_API InternedStrings {
 public:
  StringId add(std::string_view text);
  const std::string& operator[](StringId id) const { return *list_[id.index()]; }

 private:
  // Shared pointers, because a SourceSite points into the strings and must survive growth of the list, and
  // because copies of a graph (many, if regions are copied) share them.
  std::vector<std::shared_ptr<const std::string>> list_;
  NumberTable index_;
};

// Source lines, each once, numbered from 1; 0 is an unknown line.
class LOCKSTEP_API InternedSites {
 public:
  std::uint32_t add(const SourceSite& site, InternedStrings& strings);
  SourceSite get(std::uint32_t number, const InternedStrings& strings) const;

 private:
  struct Site {
    StringId file, function;
    std::uint32_t line = 0;
    friend bool operator==(const Site&, const Site&) = default;
  };
  std::vector<Site> list_;
  NumberTable index_;
  std::uint32_t last_ = 0;  // most nodes come from the line of the node before
};

// The variables that a graph declares, in order. Its methods are those of Graph.
class LOCKSTEP_API VariableTable {
 public:
  const std::vector<VariableDecl>& list() const { return list_; }
  const VariableDecl* find(std::string_view name) const;
  void declare(VariableDecl decl);
  void redeclare(VariableDecl decl);
  void remove(std::string_view name);

 private:
  void index_all(std::size_t room);

  std::vector<VariableDecl> list_;
  NumberTable index_;
};

}  // namespace lockstep::internal
