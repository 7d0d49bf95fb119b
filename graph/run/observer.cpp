// graph/run/observer.cpp - sees what runs when.
#include "lockstep/graph/run/observer.h"

namespace lockstep {

Observer::Observer() = default;
Observer::~Observer() = default;

}  // namespace lockstep
