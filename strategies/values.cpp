#include "lockstep/strategies/values.h"

namespace lockstep {

std::string_view to_string(ReplicaKind kind) {
  switch (kind) {
    case ReplicaKind::kSingle: return "single";
    case ReplicaKind::kMirrored: return "mirrored";
    case ReplicaKind::kPerReplica: return "per replica";
  }
  return "?";
}

std::ostream& operator<<(std::ostream& out, const PerReplica<Tensor>& value) {
  if (value.empty()) return out << "empty";
  if (value.is_single()) return out << value[0];
  out << to_string(value.kind()) << " {";
  for (std::size_t r = 0; r < value.size(); ++r) out << (r == 0 ? "" : ", ") << r << ": " << value[r];
  return out << '}';
}

}  // namespace lockstep
