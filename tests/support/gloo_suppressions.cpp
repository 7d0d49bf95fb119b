// tests/support/gloo_suppressions.cpp - what ThreadSanitizer cannot see of Gloo.
//
// Gloo is not compiled with the sanitizer. Its buffers are destroyed once a count of those that use them, which the sanitizer does not
// see, has come down to nothing: it takes that for a race.
extern "C" const char*
__tsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier): the sanitizer's name
extern "C" const char* __tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "race:gloo::transport::tcp::UnboundBuffer\n";
}
