// strategies/trace/values.cpp - values that exist once per replica.
#include "lockstep/strategies/trace/values.h"

namespace lockstep {

namespace {

template <class T, class Print>
std::ostream& print_slots(std::ostream& out, const PerReplica<T>& value, const Print& print) {
  if (value.empty()) return out << "empty";
  if (value.is_single()) return print(value[0]);
  out << to_string(value.kind()) << " {";
  for (std::size_t r = 0; r < value.size(); ++r) {
    out << (r == 0 ? "" : ", ") << r << ": ";
    print(value[r]);
  }
  return out << '}';
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const PerReplica<Tensor>& value) {
  return print_slots(out, value, [&](const Tensor& slot) -> std::ostream& { return out << slot; });
}

std::ostream& operator<<(std::ostream& out, const PerReplica<Value>& value) {
  return print_slots(out, value, [&](const Value& slot) -> std::ostream& {
    return slot.valid() ? out << slot.name() << ": " << slot.spec() : out << "no value";
  });
}

std::ostream& operator<<(std::ostream& out, const RunResult& result) {
  return result.is_traced() ? out << result.traced() : out << result.computed();
}

std::ostream& operator<<(std::ostream& out, const ReduceResult& result) {
  return result.is_traced() ? out << PerReplica<Value>(result.traced()) : out << result.computed();
}

}  // namespace lockstep
