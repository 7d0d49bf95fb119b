// strategies/trace/removed_spellings.h - names that moved to strategies/compat.h, refused by the compiler
// with their new spelling.
//
// Strategy derives from RemovedSpellings, so that `strategy.is_single_tower()` says where the name went.
// docs/migration.md lists all of them. Nothing here can be called.
#pragma once

namespace lockstep {

namespace internal {

template <class...>
inline constexpr bool kStillSpelled = false;

class RemovedSpellings {
 public:
  template <class Unused = void>
  bool is_single_tower() const {
    static_assert(kStillSpelled<Unused>,
                  "is_single_tower() is compat::is_single_tower(strategy) now: include "
                  "lockstep/strategies/compat.h");
    return false;
  }
  template <class Unused = void>
  bool between_graph() const {
    static_assert(kStillSpelled<Unused>,
                  "between_graph() is compat::between_graph(strategy) now: include "
                  "lockstep/strategies/compat.h");
    return false;
  }
  template <class Unused = void>
  bool should_init() const {
    static_assert(kStillSpelled<Unused>,
                  "should_init() is compat::should_init(strategy) now: include lockstep/strategies/compat.h");
    return false;
  }
  template <class Unused = void>
  bool should_checkpoint() const {
    static_assert(kStillSpelled<Unused>,
                  "should_checkpoint() is compat::should_checkpoint(strategy) now: include "
                  "lockstep/strategies/compat.h");
    return false;
  }
  template <class Unused = void>
  bool should_save_summary() const {
    static_assert(kStillSpelled<Unused>,
                  "should_save_summary() is compat::should_save_summary(strategy) now: include "
                  "lockstep/strategies/compat.h");
    return false;
  }

 protected:
  RemovedSpellings() = default;
  ~RemovedSpellings() = default;
};

}  // namespace internal

template <class... Arguments>
void experimental_run(Arguments&&...) {
  static_assert(internal::kStillSpelled<Arguments...>,
                "experimental_run() is compat::experimental_run(strategy, ...) now: include "
                "lockstep/strategies/compat.h");
}

namespace extended {

template <class T>
void initialize(T&&) {
  static_assert(internal::kStillSpelled<T>,
                "extended::initialize() is compat::initialize(strategy) now: include "
                "lockstep/strategies/compat.h");
}
template <class T>
void finalize(T&&) {
  static_assert(internal::kStillSpelled<T>,
                "extended::finalize() is compat::finalize(strategy) now: include "
                "lockstep/strategies/compat.h");
}
template <class T>
void value_container(T&&) {
  static_assert(internal::kStillSpelled<T>,
                "extended::value_container() is compat::value_container(value) now: include "
                "lockstep/strategies/compat.h");
}

}  // namespace extended

}  // namespace lockstep
