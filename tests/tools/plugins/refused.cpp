// Plugins that must be refused, by what LOCKSTEP_REFUSED_* says. In plain C, so that nothing here depends on
// a version. The struct has the name that the header gives it: sanitizers compare the types of functions.
struct LockstepPlugin {
  unsigned format;
  const char* build;
  const char* name;
  const void* (*op_registry)();
  void (*add_all)();
};

#if !defined(LOCKSTEP_REFUSED_NO_ENTRY)
extern "C" __attribute__((visibility("default"))) const LockstepPlugin* lockstep_plugin() {
  static const LockstepPlugin plugin = {
#if defined(LOCKSTEP_REFUSED_FORMAT)
    2,
#else
    1,
#endif
#if defined(LOCKSTEP_REFUSED_REGISTRY)
    LOCKSTEP_REFUSED_REGISTRY,
#else
    "Lockstep 0.0.7 with libstdc++",
#endif
    "refused",
    [] { return static_cast<const void*>(&plugin); },
    [] {}
  };
  return &plugin;
}
#endif
